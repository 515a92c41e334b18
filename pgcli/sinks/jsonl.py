"""A JSON Lines file that is its own record of which rows are done."""

from __future__ import annotations

import sys
from functools import partial

from pgcli.sinks.chunk_store import Chunk, OpenChunk
from pgcli.state.input_check import PreviousRows
from pgcli.state.progress import FileCheckpoint
from pgcli.state.record_file import read_rows
from pgcli.state.row_file import RowFile
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import RETRIED, TORN


class JsonlFile:
    """A store of one chunk of any size, whose file of lines is the output itself.

    With `retry` the rows are written to a new file, which replaces the output when it is complete.
    """

    chunk_rows = sys.maxsize

    def __init__(self, state: RunState, *, retry: bool = False):
        self._state, self._retry = state, retry
        self._file: RowFile | None = None
        self.chunks: dict[int, Chunk] = {}

    def owns(self, number: int) -> bool:
        return True

    def unfinished(self) -> list[int]:
        return [0]

    def open(self, number: int) -> OpenChunk:
        state, previous = self._state, None
        file, checkpoint = state.output, FileCheckpoint()
        if self._retry:
            file = state.folder / RETRIED
            previous = PreviousRows(state.output, partial(read_rows, state.output))
        elif state.resumes:
            checkpoint = state.progress.safe
        is_new = not state.resumes  # then the file is another run's, to be replaced
        self._file = RowFile(file, state.folder / TORN, checkpoint, is_new=is_new)
        return OpenChunk(number, self._file, previous)

    def begin(self) -> None:
        pass

    def finish_chunk(self, chunk: OpenChunk) -> bool:
        if chunk.previous is not None:
            chunk.file.sync()
            chunk.file.rename(self._state.output)
            chunk.previous = None
        return False

    def finish(self) -> None:
        """Create the file of a run that had no rows."""
        (self._file or self.open(0).file).create()

    def close(self) -> None:
        pass
