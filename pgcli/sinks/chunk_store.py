"""Chunks of rows: open ones that take rows, and where complete ones are kept."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pgcli.state.input_check import PreviousRows
from pgcli.state.progress import FileCheckpoint
from pgcli.state.row_file import RowFile
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import TORN


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


class ChunkStore:
    """Keeps complete chunks by number, and opens the files of incomplete ones."""

    chunk_rows = sys.maxsize  # the number of rows in a full chunk

    def __init__(self, state: RunState, *, retry: bool = False):
        self._state, self._retry = state, retry
        self.chunks: dict[int, Chunk] = {}

    def owns(self, number: int) -> bool:
        """Whether this process writes the chunk."""
        return True

    def unfinished(self) -> list[int]:
        """The chunks of an earlier run that take more rows, or whose rows are made again."""
        return [0]

    def open(self, number: int) -> OpenChunk:
        """Open a chunk for rows, recovering those that it has. Raises OutputFailed."""
        raise NotImplementedError

    def begin(self) -> None:
        """Prepare for the first row. Raises OutputFailed."""

    def finish_chunk(self, chunk: OpenChunk) -> bool:
        """Store the rows of a chunk durably; False if its file of lines is to stay open."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the output: all rows have been saved."""

    def close(self) -> None:
        """Remove files that the next run does not need."""

    def _open_file(self, file: Path, checkpoint: FileCheckpoint) -> RowFile:
        """A file of lines; without a run to resume, an existing one belongs to another run."""
        state = self._state
        return RowFile(
            file,
            state.folder / TORN,
            checkpoint,
            is_new=not state.resumes,
            output=state.output,
        )
