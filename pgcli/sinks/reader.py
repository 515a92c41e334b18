"""Reads the rows of an output of any format, complete or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.printable import is_deep
from pgcli.records import EMBEDDING_TASK_COLUMNS
from pgcli.rows import base_of, with_embedding_list
from pgcli.state.atomic_file import read_json
from pgcli.state.record_file import MAX_LEVELS, is_too_deep, parse_row, read_lines, read_rows
from pgcli.state.shard import stored_chunk_rows
from pgcli.state.state_folder import (
    CHUNK_LINES,
    COMPLETE,
    RUN,
    UNFINISHED,
    state_folder,
    uses_chunks,
)

Row = Mapping[str, Any]
#: A row and its index in the output; None for a line that is not a row.
IndexedRow = tuple[int, Row | None]
#: The columns that every result file of ours has, of those that its command writes.
REQUIRED = {"index", "id", "image", "task", "prompt", "answer", "boxes", "error"}
REQUIRED |= set(EMBEDDING_TASK_COLUMNS)
DAMAGED, TOO_DEEP = ": it is cut or damaged", ": it is nested too deeply"
HINT = "name an output as it was given to -o"


def read_results(output: Path) -> Iterator[Row]:
    """The rows of an output, complete or not, or of a result file without its state folder.

    Ignores a last row that is cut off. Raises UsageError for any other content.
    """
    try:
        check_results(output)
        yield from valid_rows(output)
    except (OSError, ValueError, RecursionError) as problem:  # includes those of pyarrow
        raise UsageError(
            f"{output} cannot be read: {problem}",
            hint="name a .jsonl or .parquet file, or a folder of Parquet files",
        ) from problem


def check_results(output: Path) -> None:
    """Raise UsageError where no rows of a run can be. Raises OSError."""
    if not output.exists() and not state_folder(output).exists():
        raise UsageError(f"{output} does not exist", hint=HINT)
    if output.exists() and not output.is_file() and not output.is_dir():
        raise UsageError(f"{output} is not a regular file", hint=HINT)
    if output.is_dir() and not state_folder(output).exists() and not any(output.glob("*.parquet")):
        raise UsageError(f"{output} is a folder without rows", hint=HINT)


def valid_rows(output: Path) -> Iterator[Row]:
    """The rows before an incomplete last one. Raises UsageError for anything that is not a row."""
    is_cut = False
    for row_index, row in indexed_rows(output):
        if row is None and row_index and not is_cut:
            is_cut = True
            continue
        problem = DAMAGED if is_cut or row is None else missing_columns(row)
        if problem:
            raise UsageError(
                f"{output}: row {row_index + 1:,} is not a result row{problem}",
                hint="name a file or folder that an answering command wrote",
            )
        assert row is not None
        yield row


def missing_columns(row: Row) -> str:
    """Why the row is not a result row, after a colon; empty for one that is."""
    columns = base_of(row)
    if missing := [repr(name) for name in columns if name in REQUIRED - row.keys()]:
        return f": it has no {', '.join(missing)}"
    return TOO_DEEP if is_deep(row, MAX_LEVELS) else ""


def indexed_rows(output: Path, *, exact: bool = False) -> Iterator[IndexedRow]:
    """Every saved row with its index, in order, including those of an incomplete Parquet file.

    With `exact`, kept columns of Parquet files have the values that write them again. Raises what
    pyarrow raises for a file it cannot read, and ValueError for a row that is nested too deeply.
    """
    if uses_chunks(output):
        yield from rows_of_chunks(output, exact=exact)
        return
    for row_index, line in enumerate(read_lines(output)) if output.exists() else ():
        row = parse_row(line)
        if row is None and is_too_deep(line):
            raise ValueError(f"row {row_index + 1:,}{TOO_DEEP}")
        yield row_index, row


def rows_of_chunks(output: Path, *, exact: bool) -> Iterator[IndexedRow]:
    """The rows of the whole file, then of chunks that have more, each index once.

    A chunk that took more rows after the file was complete repeats the rows in the file.
    """
    next_index = 0
    for rows, start in chunk_rows(output, exact=exact):
        for row_index, row in enumerate(rows, start=start):
            if row_index >= next_index:
                yield row_index, row
                next_index = row_index + 1


def chunk_rows(output: Path, *, exact: bool) -> Iterator[tuple[Iterator[Row], int]]:
    """The rows of the whole file and of each chunk, with the index of the first of them."""
    from pgcli.sinks.parquet_file import chunks_in, read_json_rows, read_parquet
    from pgcli.sinks.parquet_folder import chunk_files

    read = read_parquet if exact else read_json_rows
    folder = state_folder(output)
    record = read_json(folder / RUN)
    # a file that is not of the run beside it is one that the run will replace
    if output.is_file() and (record is None or chunks_in(output, record.get("run", ""))):
        yield read(output), 0
    settings = (record or {}).get("settings")
    rows_per_chunk = stored_chunk_rows(settings if isinstance(settings, dict) else {})
    complete = dict(chunk_files(output))
    complete |= {int(file.name): file for file in (folder / COMPLETE).glob("[0-9]*")}
    lines = lines_of_chunks(folder / UNFINISHED)
    for number in sorted(complete.keys() | lines.keys()):
        is_complete = number in complete
        rows = read(complete[number]) if is_complete else read_rows(lines[number])
        yield rows if exact else map(with_embedding_list, rows), number * rows_per_chunk


def lines_of_chunks(folder: Path) -> dict[int, Path]:
    """The file of lines of each incomplete chunk, by its number.

    Shards of other numbers may have left lines of the same rows: the longest file has the most.
    """
    files = sorted(folder.glob("[0-9]*.jsonl"), key=lambda file: file.stat().st_size)
    return {int(found[1]): file for file in files if (found := CHUNK_LINES.fullmatch(file.name))}
