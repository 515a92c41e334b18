"""A folder of Parquet files, one for each chunk: every file in it is complete at any time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pgcli.errors import OutputExists, OutputFailed
from pgcli.rows import RowSchema
from pgcli.sinks.chunk_store import Chunk
from pgcli.sinks.column_types import MISMATCHES, ColumnTypes
from pgcli.sinks.parquet_chunks import ParquetChunks
from pgcli.sinks.parquet_file import chunks_in, file_metadata, read_parquet, write_parquet
from pgcli.sinks.schema import Row, make_table
from pgcli.state.atomic_file import publish_file
from pgcli.state.run_state import RunState
from pgcli.state.write_errors import make_folder, wrap_write_errors

NAME = re.compile(r"part-(\d{6,})\.parquet")


class ParquetFolder(ParquetChunks):
    """Chunks in files named by their numbers, with the same column types in each.

    A chunk that two processes compute exists once, as the first of them wrote it; of other limits,
    the one with more rows stays. `owns_chunk` selects the chunks of this process.
    """

    def __init__(
        self,
        state: RunState,
        schema: RowSchema,
        settings: Mapping[str, object],
        types: ColumnTypes,
        *,
        owns_chunk: Callable[[int], bool] = lambda number: True,
        retry: bool = False,
    ):
        super().__init__(state, schema, settings, retry=retry)
        self.types, self._owns_chunk = types, owns_chunk
        for number, chunk in self._find_chunks() if state.resumes else ():
            if chunk is None:
                raise OutputExists(
                    f"{self._name(number)} is not a file of the run that {state.name} belongs to",
                    hint="move it away; or choose another -o",
                )
            self.chunks[number] = chunk

    def owns(self, number: int) -> bool:
        return self._owns_chunk(number)

    @property
    def output(self) -> Path:
        """The folder."""
        return self._state.output

    def stored(self, number: int) -> Chunk | None:
        """A complete chunk as any process of this run stored it; None if it is not there."""
        found = chunks_in(self._path(number), self._state.run_id)
        return found[0] if found else None

    def read_chunk(self, number: int) -> Iterator[Row]:
        return read_parquet(self._path(number))

    def write_chunk(self, chunk: Chunk, rows: list[Row]) -> None:
        state = self._state
        # not in the folder, and not called .parquet: readers load every file that they find there
        temporary = state.folder / f"{chunk.number:06}{state.part}.tmp"
        metadata = file_metadata(self._settings, state.run_id, [chunk])
        try:
            table = make_table(rows, self._schema, self.types, self.embedding_dim)
        except MISMATCHES as problem:
            raise OutputExists(
                f"a kept column of {state.name} now has values of another type: {problem}",
                hint="another -o starts anew; --overwrite replaces it",
            ) from problem

        def publish(*, replace: bool) -> bool:
            with wrap_write_errors(state.output):
                make_folder(state.output)
                write_parquet(temporary, table, rows, metadata)
            return self._publish(temporary, chunk.number, replace=replace)

        stored = chunk
        if not publish(replace=chunk.number in self.chunks):
            stored = self._stored_by_another(chunk)
            if stored.rows < chunk.rows:  # by one with a smaller limit
                publish(replace=True)
                stored = chunk
        self.chunks[chunk.number] = stored

    def has_longer(self, chunk: Chunk) -> bool:
        """Whether another process, with a larger limit, has stored more rows of the chunk."""
        number = chunk.number
        if not self.keeps_inputs and number not in self.chunks:
            return False  # it would not be replaced, and looking for it takes a request
        stored = self.stored(number)
        if stored is None or stored.rows <= chunk.rows:
            return False
        self.chunks[number] = stored
        return True

    def finish(self) -> None:
        with wrap_write_errors(self._state.output):
            make_folder(self._state.output)

    def _find_chunks(self) -> Iterator[tuple[int, Chunk | None]]:
        """The chunks that are there by number; None for a file of another run."""
        for number, _ in chunk_files(self._state.output):
            yield number, self.stored(number)

    def _publish(self, temporary: Path, number: int, *, replace: bool) -> bool:
        """Store a complete file; False where there is one that is not to be replaced."""
        return publish_file(temporary, self._path(number), replace=replace)

    def _stored_by_another(self, chunk: Chunk) -> Chunk:
        """The chunk as another process of this run stored it, maybe of another number of rows.

        Raises OutputFailed.
        """
        stored = self.stored(chunk.number)
        is_as_long = stored is not None and stored.rows == chunk.rows
        if stored is None or (is_as_long and stored.digest != chunk.digest):
            raise OutputFailed(
                f"{self._name(chunk.number)} was created by another program during the run",
                hint="move it away, then run the same command again to resume",
            )
        return stored

    def _name(self, number: int) -> str:
        """The file of a chunk, for messages."""
        return str(self._path(number))

    def _path(self, number: int) -> Path:
        return self._state.output / part_name(number)


def part_name(number: int) -> str:
    """The name of the file of a chunk."""
    return f"part-{number:06}.parquet"


def chunk_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """The files of chunks in the folder, with their numbers."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if found := NAME.fullmatch(file.name):
            yield int(found[1]), file
