"""Parquet files of a chunk of rows each: written apart, and then there in one step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow
from pyarrow import parquet

from pgcli.sinks.schema import Row, weight
from pgcli.state.atomic_file import named
from pgcli.state.write_errors import sync, writing

#: A row group ends at so many bytes held in memory.
BYTES = 64 * 2**20
SETTINGS, CHUNKS, RUN = b"pgcli", b"pgcli.chunks", b"pgcli.pipeline"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of the output that are complete: how many, the digest of their input, their errors."""

    number: int
    rows: int
    digest: str
    errors: Mapping[str, int] = field(default_factory=dict)


class ChunkStore(Protocol):
    """Where complete chunks are."""

    def chunks(self) -> dict[int, Chunk]:
        """Those that are there, by their numbers."""

    def rows(self, number: int) -> Iterator[Row]:
        """The rows of one that is there."""

    def put(self, chunk: Chunk, rows: list[Row]) -> None:
        """Have the chunk be there, for good. One of as many rows that is there already stays."""

    def finish(self) -> None:
        """All chunks are there."""

    def clear(self) -> None:
        """The run ends; nothing stays that the next one does not need."""


def metadata(
    settings: Mapping[str, object], run: str, chunks: Sequence[Chunk]
) -> dict[bytes, bytes]:
    """What a Parquet file says of itself: the run's settings, its id, and the chunks within."""
    return {
        SETTINGS: json.dumps(dict(settings), default=str).encode(),
        RUN: run.encode(),
        CHUNKS: json.dumps([asdict(chunk) for chunk in chunks]).encode(),
    }


def chunks_in(file: Path, run: str) -> list[Chunk]:
    """The chunks that a Parquet file of this run has; none where it is not of this run."""
    try:
        known = parquet.read_schema(file).metadata or {}
    except (OSError, pyarrow.ArrowInvalid):
        return []
    if known.get(RUN, b"") != run.encode("utf-8", "surrogatepass"):
        return []
    try:
        return [Chunk(**chunk) for chunk in json.loads(known[CHUNKS])]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []


def rows_in(file: Path) -> Iterator[Row]:
    """The rows of a Parquet file, as they were before they were written."""
    with parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(batch_size=1000):
            yield from batch.to_pylist()


def write(
    file: Path, made: pyarrow.Table, rows: Sequence[Row], told: Mapping[bytes, bytes]
) -> None:
    """Write rows, of which the table was made, with what the file says of itself.

    Raises OSError.
    """
    whole = made.replace_schema_metadata(told)
    parquet.write_table(whole, file, compression="zstd", row_group_size=group_rows(rows))


def group_rows(rows: Sequence[Row]) -> int:
    """How many rows make a group that stays within BYTES."""
    held = sum(map(weight, map(dict, rows)))
    return max(1, len(rows) * BYTES // max(held, BYTES))


def published(beside: Path, part: Path, *, replace: bool) -> bool:
    """Give a complete file its name, for good; False where a file of that name was there.

    Whoever comes first wins, unless it is to `replace` what is there. Raises OutputFailed.
    """
    with writing(part):
        sync(beside)
        if replace:
            beside.replace(part)
        elif not named(beside, part):
            beside.unlink()
            return False
        beside.unlink(missing_ok=True)
        sync(part.parent)
    return True
