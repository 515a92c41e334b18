"""Counts the rows of an output by what is on disk, whoever wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pgcli.state.progress import FileCheckpoint, RunProgress
from pgcli.state.record_file import Position, has_whole_lines, read_rows
from pgcli.state.state_folder import CHUNK_LINES, COMPLETE, UNFINISHED, state_folder, uses_chunks


@dataclass(frozen=True)
class SavedRows:
    """The rows of a chunk, those of them with errors by code, and whether readers find them."""

    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    is_stored: bool = True


def count_saved(
    output: Path, run_id: str, progress: Mapping[str, RunProgress]
) -> dict[int, SavedRows]:
    """The saved rows of each chunk of a run, by its number; JSON lines are chunk 0.

    `progress` is that of each part of the output. Reads only the rows that are newer than it.
    """
    if not uses_chunks(output):
        safe = progress[""].safe if "" in progress else FileCheckpoint()
        return {0: count_lines(output, safe)} if output.is_file() else {}
    chunks = dict(stored_chunks(output, run_id))
    for file in sorted((state_folder(output) / UNFINISHED).glob("[0-9]*.jsonl")):
        found = CHUNK_LINES.fullmatch(file.name)
        if found is None:  # a chunk that is made again
            continue
        number, part = int(found[1]), progress.get(found[2], RunProgress())
        lines = count_lines(file, part.safe if part.chunk == number else FileCheckpoint())
        # parts of another number of shards may have left lines of the same rows
        if number not in chunks or lines.rows > chunks[number].rows:
            chunks[number] = SavedRows(lines.rows, lines.errors, is_stored=False)
    return chunks


def stored_chunks(output: Path, run_id: str) -> Iterator[tuple[int, SavedRows]]:
    """The complete chunks of a run; those in files of their own last, as they are newer."""
    from pgcli.sinks.parquet_file import chunks_in
    from pgcli.sinks.parquet_folder import chunk_files

    files = [output] if output.is_file() else [file for _, file in chunk_files(output)]
    separate = sorted((state_folder(output) / COMPLETE).glob("[0-9]*"))
    for file in files + separate:
        for chunk in chunks_in(file, run_id):
            is_stored = file not in separate
            yield chunk.number, SavedRows(chunk.rows, Counter(chunk.errors), is_stored=is_stored)


def count_lines(file: Path, safe: FileCheckpoint) -> SavedRows:
    """The rows of a file of lines. Those of the checkpoint are counted, the others parsed."""
    if not has_whole_lines(file, Position(safe.bytes, safe.rows)):
        safe = FileCheckpoint()
    rows, errors = safe.rows, Counter(safe.errors)
    try:
        for row in read_rows(file, safe.bytes):
            rows += 1
            if row.get("error") is not None:
                errors[str(row["error"])] += 1
    except FileNotFoundError:  # its chunk became complete
        return SavedRows()
    return SavedRows(rows, errors)
