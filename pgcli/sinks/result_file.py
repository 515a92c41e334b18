"""Writes a result file at once: rows that were merged, corrected, selected or imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pgcli.errors import OutputExists, UsageError
from pgcli.rows import RowSchema, json_safe, json_text
from pgcli.sinks import ENDINGS
from pgcli.sinks.reader import Row
from pgcli.state.atomic_file import publish_file, temporary_path
from pgcli.state.destination import check_destination
from pgcli.state.state_folder import RUN, state_folder
from pgcli.state.write_errors import already_exists, wrap_write_errors

#: Starts a pass through the rows.
ReadRows = Callable[[], Iterable[Row]]


def check_result_file(target: Path, *, overwrite: bool) -> None:
    """Raise UsageError, OutputExists or OutputFailed where the file cannot be written."""
    if str(target) == "-":
        raise UsageError("rows are written to a file here", hint="name it: -o rows.jsonl")
    if target.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"{target} is not the name of a .jsonl or .parquet file",
            hint=f"-o {target.with_suffix('').name or 'rows'}.jsonl, or the same with .parquet",
        )
    if (state_folder(target) / RUN).exists():
        raise OutputExists(
            f"{target} belongs to a run, which resumes it", hint="name another file with -o"
        )
    check_destination(target, overwrite=overwrite)


def write_result_file(
    target: Path, rows: ReadRows, schema: RowSchema, *, overwrite: bool = False
) -> int:
    """Write the rows as JSON lines or Parquet, by the ending of the name; return their number.

    The file appears as a whole. For Parquet the rows are read twice if there are kept columns.
    Raises what `check_result_file` raises.
    """
    check_result_file(target, overwrite=overwrite)
    part = temporary_path(target)
    with wrap_write_errors(target):
        try:
            is_jsonl = ENDINGS[target.suffix.lower()] == "jsonl"
            count = (write_lines if is_jsonl else write_table)(part, rows, schema)
            if not publish_file(part, target, replace=overwrite):
                raise already_exists(target)
        finally:
            part.unlink(missing_ok=True)
    return count


def write_lines(file: Path, rows: ReadRows, schema: RowSchema) -> int:
    """Write the rows as JSON lines."""
    names, count = (*schema.columns, *schema.keep), 0
    with file.open("w", encoding="utf-8") as opened:
        for row in rows():
            opened.write(json_text(json_safe({name: row.get(name) for name in names})) + "\n")
            count += 1
    return count


def write_table(file: Path, rows: ReadRows, schema: RowSchema) -> int:
    """Write the rows as Parquet. Raises UsageError for a value that its column cannot hold."""
    from pyarrow import parquet  # slow to import

    from pgcli.sinks.column_types import MISMATCHES, batches, scan_types
    from pgcli.sinks.parquet_file import rows_per_group
    from pgcli.sinks.schema import EMBEDDING, embedding_dim_of, make_table

    names, count = (*schema.columns, *schema.keep), 0
    types = scan_types(schema.keep, rows)
    embedding_dim = embedding_dim_of(rows()) if EMBEDDING in schema.columns else None
    writer = None
    try:
        for batch in batches(rows()):
            full = [{name: row.get(name) for name in names} for row in batch]
            table = make_table(full, schema, types, embedding_dim)
            writer = writer or parquet.ParquetWriter(file, table.schema, compression="zstd")
            writer.write_table(table, rows_per_group(full))
            count += len(full)
        if writer is None:
            parquet.write_table(make_table([], schema, types), file)
    except MISMATCHES as problem:
        raise UsageError(
            f"a row does not fit the columns of Parquet: {problem}", hint="write a .jsonl file"
        ) from problem
    finally:
        if writer is not None:
            writer.close()
    return count
