"""A folder of Parquet files in an object store: each is put once, complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow

from pgcli.remote.stored_objects import StoredObjects
from pgcli.rows import RowSchema
from pgcli.sinks.chunk_store import Chunk
from pgcli.sinks.column_types import ColumnTypes
from pgcli.sinks.parquet_file import chunks_in, read_parquet
from pgcli.sinks.parquet_folder import NAME, ParquetFolder, part_name
from pgcli.sinks.saved_rows import SavedRows
from pgcli.sinks.schema import Row
from pgcli.state.stored_run import PARTS, StoredRunState

THREADS = 32  # that read the ends of files at one time
END_BYTES = 2**16  # of a file, in which the metadata mostly is
LENGTH_BYTES = 8  # of a file's end: the length of the metadata, and "PAR1"


class StoredFolder(ParquetFolder):
    """Chunks in objects named by their numbers. One that another process put first stays.

    A chunk that has fewer rows than this run gives it, as with a smaller limit, is replaced.
    """

    keeps_inputs = False

    def __init__(
        self,
        state: StoredRunState,
        schema: RowSchema,
        settings: Mapping[str, object],
        types: ColumnTypes,
        *,
        owns_chunk: Callable[[int], bool] = lambda number: True,
    ):
        self._objects = state.parts
        super().__init__(state, schema, settings, types, owns_chunk=owns_chunk)

    def unfinished(self) -> list[int]:
        return []

    def stored(self, number: int) -> Chunk | None:
        known = self.chunks.get(number)
        if known is not None and known.rows >= self.chunk_rows:
            return known
        return read_chunk_metadata(self._objects, self._state.run_id, number)

    def read_chunk(self, number: int) -> Iterator[Row]:
        file = self._state.folder / part_name(number)
        file.write_bytes(self._objects.read(file.name) or b"")
        return read_parquet(file)

    def _find_chunks(self) -> Iterator[tuple[int, Chunk | None]]:
        return find_chunks(self._objects, self._state.run_id)

    def _publish(self, temporary: Path, number: int, *, replace: bool) -> bool:
        data, name = temporary.read_bytes(), part_name(number)
        temporary.unlink()
        if not replace:
            return self._objects.create(name, data)
        self._objects.put(name, data)
        return True

    def _name(self, number: int) -> str:
        return f"{self._objects.url}{part_name(number)}"


def find_chunks(objects: StoredObjects, run_id: str) -> Iterator[tuple[int, Chunk | None]]:
    """The chunks that are stored, by number; None for an object of another run."""
    found = map(NAME.fullmatch, objects.names(PARTS))
    numbers = [int(match[1]) for match in found if match]
    with ThreadPoolExecutor(THREADS) as pool:
        chunks = pool.map(partial(read_chunk_metadata, objects, run_id), numbers)
        yield from zip(numbers, chunks, strict=True)


def read_chunk_metadata(objects: StoredObjects, run_id: str, number: int) -> Chunk | None:
    """The chunk in the object of this number; None where there is none of this run."""
    end = objects.read_end(part_name(number), END_BYTES)
    if end is None:
        return None
    length = int.from_bytes(end[-LENGTH_BYTES:-4], "little") + LENGTH_BYTES
    if length > len(end):
        end = objects.read_end(part_name(number), length) or b""
    found = chunks_in(pyarrow.BufferReader(end), run_id)
    return found[0] if found else None


def stored_rows(objects: StoredObjects, run_id: str) -> dict[int, SavedRows]:
    """The rows of each chunk that is stored, by its number."""
    return {
        number: SavedRows(chunk.rows, Counter(chunk.errors))
        for number, chunk in find_chunks(objects, run_id)
        if chunk is not None
    }
