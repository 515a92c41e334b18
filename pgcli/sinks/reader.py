"""The rows of an output, whatever it is written as and whether it is complete or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.printable import is_deep
from pgcli.records import COLUMNS
from pgcli.state.atomic_file import got
from pgcli.state.record_file import DEEPEST, Mark, is_too_deep, lines, parsed
from pgcli.state.row_file import Checkpoint, rows_of
from pgcli.state.run_state import RUN
from pgcli.state.shard import CHUNK_ROWS
from pgcli.state.state_folder import PARTS, UNFINISHED, is_in_chunks, state_folder

Row = Mapping[str, Any]
#: Without these a row is not one of ours.
REQUIRED = {"index", "id", "image", "task", "prompt", "answer", "boxes", "error"}
NO_ROW, TOO_DEEP = ": it is cut or damaged", ": it is nested too deeply"
#: A row by its place in the whole of the input; None where there is something that is no row.
Placed = tuple[int, Row | None]


def results(output: Path) -> Iterator[Row]:
    """The rows of a run's output, as far as it is, or of a file that was moved away from its run.

    A last row that is cut is not there yet, or never came to be. Raises UsageError for what holds
    anything else.
    """
    if not output.exists() and not state_folder(output).exists():
        raise UsageError(f"{output} does not exist", hint="name an output as it was given to -o")
    if output.is_dir() and not state_folder(output).exists() and not any(output.glob("*.parquet")):
        raise UsageError(
            f"{output} is a folder without rows", hint="name an output as it was given to -o"
        )
    try:
        cut = False
        for place, row in placed_rows(output):
            if place and row is None and not cut:
                cut = True
                continue
            if cut or row is None or lacking(row):
                why = NO_ROW if cut or row is None else lacking(row)
                raise UsageError(
                    f"{output}: row {place + 1:,} is no row of an answer{why}",
                    hint="name a file or folder that caption, ask, detect, segment or ocr wrote",
                )
            yield row
    except (OSError, ValueError, RecursionError) as problem:  # pyarrow's are of these
        raise UsageError(
            f"{output} cannot be read: {problem}",
            hint="name a .jsonl or .parquet file, or a folder of Parquet files",
        ) from problem


def lacking(row: Row) -> str:
    """What keeps it from being a row of an answer, after a colon; nothing for one that is."""
    if missing := [repr(name) for name in COLUMNS if name in REQUIRED - row.keys()]:
        return f": it has no {', '.join(missing)}"
    return TOO_DEEP if is_deep(row, DEEPEST) else ""


def placed_rows(output: Path) -> Iterator[Placed]:
    """Every row that is saved, with its place, in order; also those of an unfinished Parquet file.

    Raises what pyarrow raises for a file that it cannot read, and ValueError for a row that is
    nested too deeply.
    """
    if is_in_chunks(output):
        yield from in_chunks(output)
        return
    for place, line in enumerate(lines(output)) if output.exists() else ():
        row = parsed(line)
        if row is None and is_too_deep(line):
            raise ValueError(f"row {place + 1:,}{TOO_DEEP}")
        yield place, row


def in_chunks(output: Path) -> Iterator[Placed]:
    """The rows of complete chunks, and of those that are not complete, each once."""
    behind = 0
    for place, row in in_all(output):
        if place >= behind:
            yield place, row
            behind = place + 1


def in_all(output: Path) -> Iterator[Placed]:
    """The rows of a whole file, and then of the chunks that are beside it or in the folder.

    A chunk that more rows come to has those that were there before as well.
    """
    from pgcli.sinks.chunk_store import chunks_in, rows_in
    from pgcli.sinks.parquet_folder import parts_in

    record = got(state_folder(output) / RUN)
    # what is not of the run beside it is what that run is to replace
    if output.is_file() and (record is None or chunks_in(output, record.get("run", ""))):
        yield from enumerate(rows_in(output))
    chunks = dict(parts_in(output))
    folder = state_folder(output)
    chunks |= {int(part.name): part for part in (folder / PARTS).glob("[0-9]*")}
    begun = {int(file.name[:6]): file for file in (folder / UNFINISHED).glob("[0-9]*.jsonl")}
    for number in sorted(chunks.keys() | begun.keys()):
        is_complete = number in chunks
        rows = rows_in(chunks[number]) if is_complete else rows_of(begun[number], Mark())
        yield from enumerate(rows, start=number * CHUNK_ROWS)


def behind(file: Path, safe: Checkpoint) -> tuple[int, Counter[str]]:
    """How many rows a file of lines has, and their errors; up to `safe` they are not read again."""
    rows, errors = safe.rows, Counter(safe.errors)
    for row in rows_of(file, Mark(safe.bytes, safe.rows)) if file.exists() else ():
        rows += 1
        if row.get("error") is not None:
            errors[row["error"]] += 1
    return rows, errors
