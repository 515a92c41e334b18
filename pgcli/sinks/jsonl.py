"""A JSON Lines file that is its own record of which rows are done."""

from __future__ import annotations

from functools import partial

from pgcli.sinks.chunk_store import ChunkStore, OpenChunk
from pgcli.state.progress import FileCheckpoint
from pgcli.state.row_file import RowFile, read_saved
from pgcli.state.state_folder import RETRIED


class JsonlFile(ChunkStore):
    """A store of one chunk of any size, whose file of lines is the output itself.

    With `retry` the rows are written to a new file, which replaces the output when it is complete.
    """

    _file: RowFile | None = None

    def open(self, number: int) -> OpenChunk:
        state, previous = self._state, None
        file, checkpoint = state.output, state.progress.safe
        if self._retry:
            file, checkpoint = state.folder / RETRIED, FileCheckpoint()
            previous = self._previous_rows(number, partial(read_saved, state.output))
        self._file = self._open_file(number, file, checkpoint, is_retry=previous is not None)
        return OpenChunk(number, self._file, previous)

    def finish_chunk(self, chunk: OpenChunk) -> bool:
        if chunk.previous is not None:
            chunk.file.sync()
            chunk.file.rename(self._state.output)
            self._replace_records(chunk)
            chunk.previous.close()
            chunk.previous = None
        return False

    def finish(self) -> None:
        """Create the file of a run that had no rows."""
        (self._file or self.open(0).file).create()
