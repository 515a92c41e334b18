"""Chunks of rows that are JSON lines until they are complete and become Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pgcli.arrow_values import to_json
from pgcli.rows import RowSchema, json_text
from pgcli.sinks.chunk_store import Chunk, ChunkStore, OpenChunk
from pgcli.sinks.schema import EMBEDDING_DIM, Row
from pgcli.state.progress import FileCheckpoint
from pgcli.state.row_file import read_saved
from pgcli.state.run_state import RunState
from pgcli.state.shard import stored_chunk_rows
from pgcli.state.state_folder import UNFINISHED, chunk_file
from pgcli.state.write_errors import make_folder, wrap_write_errors


class ParquetChunks(ChunkStore):
    """What a folder of Parquet files and a single Parquet file have in common.

    With `retry` complete chunks that have error rows are made again. `settings` are stored in the
    files, and read when a file is complete: some are known only then.
    """

    def __init__(
        self,
        state: RunState,
        schema: RowSchema,
        settings: Mapping[str, object],
        *,
        retry: bool = False,
    ):
        super().__init__(state, retry=retry)
        self.chunk_rows = stored_chunk_rows(settings)
        self._schema, self._settings = schema, settings
        self._lines_folder = state.folder / UNFINISHED

    @property
    def embedding_dim(self) -> int | None:
        """The number of values of each embedding; None where it is not known yet."""
        dim = self._settings.get(EMBEDDING_DIM)
        return dim if isinstance(dim, int) else None

    def write_chunk(self, chunk: Chunk, rows: list[Row]) -> None:
        """Store the rows of a chunk durably; one that another process has stored stays."""
        raise NotImplementedError

    def unfinished(self) -> list[int]:
        numbers = {
            number
            for number, chunk in self.chunks.items()
            if chunk.rows < self.chunk_rows or self._is_retried(number)
        }
        ending = f"{self._state.part}.jsonl"
        names = [file.name.removesuffix(ending) for file in self._lines_folder.glob(f"*{ending}")]
        numbers |= {int(name) for name in names if name.isdigit()} - self.chunks.keys()
        return [number for number in sorted(numbers) if self.owns(number)]

    def remove_lines(self) -> None:
        """Remove the lines of chunks that this process began. Raises OutputFailed."""
        with wrap_write_errors(self._lines_folder):
            for file in self._lines_folder.glob(f"*{self._state.part}.jsonl"):
                file.unlink(missing_ok=True)

    def begin(self) -> None:
        with wrap_write_errors(self._lines_folder):
            make_folder(self._lines_folder)

    def open(self, number: int) -> OpenChunk:
        state, previous = self._state, None
        file = chunk_file(state.output, number, state.part)
        checkpoint = FileCheckpoint()
        if self._is_retried(number):
            file = file.with_suffix(".retry.jsonl")
            previous = self._previous_rows(number, partial(self.read_chunk, number))
        elif number in self.chunks and not file.exists():
            checkpoint = self._unpack(self.chunks[number])
        elif state.progress.chunk == number:
            checkpoint = state.progress.safe
        is_retry = previous is not None
        return OpenChunk(
            number, self._open_file(number, file, checkpoint, is_retry=is_retry), previous
        )

    def finish_chunk(self, chunk: OpenChunk) -> bool:
        rows, stored = chunk.file.rows, self.chunks.get(chunk.number)
        if rows and (stored is None or rows > stored.rows or chunk.previous is not None):
            checkpoint = chunk.file.sync()
            complete = Chunk(chunk.number, rows, checkpoint.digest, dict(checkpoint.errors))
            self.write_chunk(complete, list(read_saved(chunk.file.file)))
            if chunk.previous is not None:
                self._replace_records(chunk)
        chunk.close()
        # after a retry the chunk may also have lines that an earlier run left, with the old errors
        lines = chunk_file(self._state.output, chunk.number, self._state.part)
        for file in (chunk.file.file, lines):
            with wrap_write_errors(file):
                file.unlink(missing_ok=True)
        return True

    def _is_retried(self, number: int) -> bool:
        return self._retry and number in self.chunks and bool(self.chunks[number].errors)

    def _unpack(self, chunk: Chunk) -> FileCheckpoint:
        """Write the rows of a chunk that takes more rows as lines again."""
        file = chunk_file(self._state.output, chunk.number, self._state.part)
        rows = (to_json(dict(row)) for row in self.read_chunk(chunk.number))
        lines = "".join(json_text(row) + "\n" for row in rows)
        temporary = file.with_suffix(".tmp")
        with wrap_write_errors(file):
            make_folder(self._lines_folder)
            temporary.write_text(lines, encoding="utf-8")
            temporary.replace(file)
        return FileCheckpoint(chunk.rows, len(lines.encode()), chunk.digest, dict(chunk.errors))
