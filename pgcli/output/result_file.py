"""Writes a result file at once: rows that were merged, corrected, selected or imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pgcli.errors import OutputExists, UsageError
from pgcli.output import ENDINGS
from pgcli.output.reader import Row, state_folder
from pgcli.rows import RowSchema, json_safe, json_text
from pgcli.stores.writing import check_target, published

if TYPE_CHECKING:
    import pyarrow

#: Starts a pass through the rows.
ReadRows = Callable[[], Iterable[Row]]
TABLE_ROWS = 10_000  # that are made a table at once


def check_result_file(target: Path, *, overwrite: bool) -> None:
    """Raise UsageError, OutputExists or OutputFailed where the file cannot be written."""
    if str(target) == "-":
        raise UsageError("rows are written to a file here", hint="name it: -o rows.jsonl")
    if target.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"{target} is not the name of a .jsonl or .parquet file",
            hint=f"-o {target.with_suffix('').name or 'rows'}.jsonl, or the same with .parquet",
        )
    if (state_folder(target) / "run.json").exists():
        raise OutputExists(
            f"{target} belongs to a run, which resumes it", hint="name another file with -o"
        )
    check_target(target, "-o", is_folder=False, overwrite=overwrite)


def write_result_file(
    target: Path, rows: ReadRows, schema: RowSchema, *, overwrite: bool = False
) -> int:
    """Write the rows as JSON lines or Parquet, by the ending of the name; return their number.

    The file appears as a whole. Rows may be those of `read_results(path, exact=True)`, whose kept
    columns keep their types in Parquet. Raises what `check_result_file` raises.
    """
    check_result_file(target, overwrite=overwrite)
    write = _write_lines if ENDINGS[target.suffix.lower()] == "jsonl" else _write_parquet
    with published(target, replace=overwrite) as path, path.open("xb") as file:
        return write(file, rows, schema)


def row_tables(
    rows: Iterable[Row], schema: RowSchema, embedding_dim: int | None = None
) -> Iterator[pyarrow.Table]:
    """The rows as tables, whose kept columns may differ in their types; at least one table.

    Raises UsageError for a value that its column cannot hold.
    """
    from pgcli.output.schema import MISMATCHES, rows_table

    iterator, is_first = iter(rows), True
    while (batch := list(islice(iterator, TABLE_ROWS))) or is_first:
        is_first = False
        try:
            table = rows_table(batch, schema, None, embedding_dim)
        except MISMATCHES as problem:
            raise UsageError(
                f"a row does not fit the columns of Parquet: {problem}", hint="write a .jsonl file"
            ) from problem
        yield table


def _write_lines(file: BinaryIO, rows: ReadRows, schema: RowSchema) -> int:
    names, count = (*schema.columns, *schema.keep), 0
    for row in rows():
        values = {name: row.get(name) for name in names}
        for name in schema.keep:
            values[name] = getattr(values[name], "json", values[name])  # of a cell
        file.write(f"{json_text(json_safe(values))}\n".encode())
        count += 1
    return count


def _write_parquet(file: BinaryIO, rows: ReadRows, schema: RowSchema) -> int:
    from pgcli.output.parquet import write_parquet
    from pgcli.output.schema import EMBEDDING, embedding_dim_of

    dim = embedding_dim_of(rows()) if EMBEDDING in schema.columns else None
    return write_parquet(file, lambda: row_tables(rows(), schema, dim))
