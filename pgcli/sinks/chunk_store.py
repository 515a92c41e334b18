"""Chunks of rows: open ones that take rows, and where complete ones are kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pgcli.state.input_check import InputCheck, PreviousRows, Row, SavedInput
from pgcli.state.input_records import InputRecords
from pgcli.state.progress import FileCheckpoint
from pgcli.state.row_file import RowFile
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import TORN, input_file


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

    def close(self) -> None:
        self.file.close()
        if self.previous is not None:
            self.previous.close()


@dataclass
class CompleteChunk:
    """The comparison of a complete chunk with the input, and the records that it reads."""

    check: InputCheck
    records: InputRecords


class ChunkStore:
    """Keeps complete chunks by number, and opens the files of incomplete ones."""

    chunk_rows = sys.maxsize  # the number of rows in a full chunk
    #: Whether the input of each row is recorded, by which changed images are noticed.
    keeps_inputs = True

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

    def compare(self, number: int) -> CompleteChunk:
        """The comparison of a complete chunk with the input."""
        chunk, records = self.chunks[number], self._records(number)
        saved = SavedInput(
            records,
            chunk.rows,
            chunk.rows,
            chunk.digest,
            lambda: enumerate(self.read_chunk(number)),
        )
        return CompleteChunk(InputCheck(saved, self._state.comparer), records)

    def read_chunk(self, number: int) -> Iterator[Row]:
        """The rows of a complete chunk."""
        raise NotImplementedError

    def _open_file(
        self, number: int, file: Path, checkpoint: FileCheckpoint, *, is_retry: bool = False
    ) -> RowFile:
        """A file of lines; without a run to resume, an existing one belongs to another run."""
        state = self._state
        return RowFile(
            file,
            state.folder / TORN,
            checkpoint,
            self._records(number, is_retry=is_retry),
            state.comparer,
            is_new=not state.resumes,
        )

    def _records(self, number: int, *, is_retry: bool = False) -> InputRecords:
        """The input of a chunk's rows, or of those that are made again."""
        file = input_file(self._state.output, number)
        file = file.with_suffix(".retry") if is_retry else file
        return InputRecords(file, is_new=not self._state.resumes)

    def _previous_rows(self, number: int, read: Callable[[], Iterator[Row]]) -> PreviousRows:
        """The rows of a chunk that is made again."""
        return PreviousRows(lambda: enumerate(read()), self._records(number), self._state.comparer)

    def _replace_records(self, chunk: OpenChunk) -> None:
        """Store the records of a chunk that was made again in place of the previous ones.

        Those are still right if the process is killed before.
        """
        chunk.file.records.rename(input_file(self._state.output, chunk.number))
