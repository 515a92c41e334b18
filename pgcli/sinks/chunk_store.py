"""Chunks of rows: open ones that take rows, and where complete ones are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pgcli.state.input_check import PreviousRows
from pgcli.state.row_file import RowFile


@dataclass(frozen=True, slots=True)
class Chunk:
    """A complete chunk: its number of rows, the digest of their input, and its error counts."""

    number: int
    rows: int
    digest: str
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass
class OpenChunk:
    """A chunk that takes rows: its file of lines, and its previous rows if it is made again."""

    number: int
    file: RowFile
    previous: PreviousRows | None = None


class ChunkStore(Protocol):
    """Keeps complete chunks by number, and opens the files of incomplete ones."""

    chunks: dict[int, Chunk]

    @property
    def chunk_rows(self) -> int:
        """The number of rows in a full chunk."""

    def owns(self, number: int) -> bool:
        """Whether this process writes the chunk."""

    def unfinished(self) -> Iterable[int]:
        """The chunks of an earlier run that take more rows, or whose rows are made again."""

    def open(self, number: int) -> OpenChunk:
        """Open a chunk for rows, recovering those that it has. Raises OutputFailed."""

    def begin(self) -> None:
        """Prepare for the first row. Raises OutputFailed."""

    def finish_chunk(self, chunk: OpenChunk) -> bool:
        """Store the rows of a chunk durably; False if its file of lines is to stay open."""

    def finish(self) -> None:
        """Complete the output: all rows have been saved."""

    def close(self) -> None:
        """Remove files that the next run does not need."""
