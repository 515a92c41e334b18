"""A single Parquet file, created when all its chunks are complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow
from pyarrow import parquet

from pgcli.errors import OutputExists
from pgcli.rows import RowSchema
from pgcli.sinks.chunk_store import Chunk
from pgcli.sinks.column_types import ColumnTypes, cast_column, common_type
from pgcli.sinks.parquet_chunks import ParquetChunks
from pgcli.sinks.parquet_file import (
    batch_rows,
    chunks_in,
    file_metadata,
    is_file_of_run,
    read_parquet,
    read_row_groups,
    write_parquet,
)
from pgcli.sinks.schema import EMBEDDING, Row, make_table, schema_types
from pgcli.state.atomic_file import publish_file
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import COMPLETE
from pgcli.state.write_errors import fsync, make_folder, wrap_write_errors

WHOLE = "whole"


class SingleParquet(ParquetChunks):
    """Chunks in separate files, joined at the end with those of an output that takes more rows.

    The type of a kept column that is not among `types` is known only then: a manifest may have
    whole numbers in a million rows and a word in the next.
    """

    def __init__(
        self,
        state: RunState,
        schema: RowSchema,
        settings: Mapping[str, object],
        types: ColumnTypes,
        *,
        retry: bool = False,
    ):
        super().__init__(state, schema, settings, retry=retry)
        self._types = types
        self._folder = state.folder / COMPLETE
        joined = chunks_in(state.output, state.run_id) if state.resumes else []
        self._joined = sorted(joined, key=lambda chunk: chunk.number)  # those in the output
        self._separate: set[int] = set()  # those in files of their own, which take precedence
        self.chunks |= {chunk.number: chunk for chunk in joined}
        for file in sorted(self._folder.glob("*")) if state.resumes else ():
            for chunk in chunks_in(file, state.run_id):
                self._add(chunk)

    def read_chunk(self, number: int) -> Iterator[Row]:
        if number in self._separate:
            return read_parquet(self._path(number))
        batches = (batch for table in self._joined_tables(number) for batch in table.to_batches())
        return (row for batch in batches for row in batch_rows(batch))

    def write_chunk(self, chunk: Chunk, rows: list[Row]) -> None:
        temporary = self._state.folder / "part"
        with wrap_write_errors(temporary):
            make_folder(self._folder)
            metadata = file_metadata({}, self._state.run_id, [chunk])
            table = make_table(rows, self._schema, self._types, self.embedding_dim)
            write_parquet(temporary, table, rows, metadata)
        publish_file(temporary, self._path(chunk.number), replace=True)
        self._add(chunk)

    def finish(self) -> None:
        """Join the chunks, at least a row group each, and replace the output."""
        if not self._separate and self._joined:
            return
        output, whole = self._state.output, self._state.folder / WHOLE
        with wrap_write_errors(output):
            self._write_whole(whole)
        is_ours = self._joined or is_file_of_run(output, self._state.run_id)
        if output.exists() and not is_ours and not self._state.may_replace:
            raise OutputExists(
                f"{output} was created by another program during the run",
                hint=f"all rows of this run are in {whole}: move it where you want it",
            )
        publish_file(whole, output, replace=True)
        with wrap_write_errors(self._folder):
            for number in self._separate:
                self._path(number).unlink()
        self._separate.clear()

    def close(self) -> None:
        with wrap_write_errors(self._state.folder):
            if self._folder.is_dir() and not any(self._folder.iterdir()):
                self._folder.rmdir()

    def _add(self, chunk: Chunk) -> None:
        self.chunks[chunk.number] = chunk
        self._separate.add(chunk.number)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06}"  # without .parquet: globs must not find it

    def _tables(self) -> Iterator[pyarrow.Table]:
        """The rows of all chunks, a table for each row group."""
        for number in sorted(self.chunks):
            if number in self._separate:
                yield from read_row_groups(self._path(number))
            else:
                yield from self._joined_tables(number)

    def _joined_tables(self, number: int) -> Iterator[pyarrow.Table]:
        """The rows of a chunk in the output."""
        start = sum(chunk.rows for chunk in self._joined if chunk.number < number)
        end = start + next(chunk.rows for chunk in self._joined if chunk.number == number)
        at = 0
        for table in read_row_groups(self._state.output):
            first, last = max(start - at, 0), min(end - at, len(table))
            if first < last:
                yield table.slice(first, last - first)
            at += len(table)

    def _write_whole(self, file: Path) -> None:
        schema = self._file_schema()
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in self._tables():
                columns = list(map(cast_column, table.columns, schema.types))
                writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
        fsync(file)

    def _saved_embedding_dim(self) -> int | None:
        """The number of values of each embedding in the chunks, of a run that loads no model."""
        if EMBEDDING not in self._schema.columns:
            return None
        kinds = (table.schema.field(EMBEDDING).type for table in self._tables())
        return next((kind.list_size for kind in kinds if hasattr(kind, "list_size")), None)

    def _file_schema(self) -> pyarrow.Schema:
        """The columns of the whole file, and its metadata."""
        fields = schema_types(self._schema, self.embedding_dim or self._saved_embedding_dim())
        for column, name in enumerate(self._schema.keep, start=len(fields)):
            kind = self._types.get(name)
            if kind is None:
                types = {table.column(column).type for table in self._tables()}
                arrays = (table.column(column) for table in self._tables())
                kind = common_type(types, arrays)
            fields.append((name, kind))
        chunks = [chunk for _, chunk in sorted(self.chunks.items())]
        metadata = file_metadata(self._settings, self._state.run_id, chunks)
        return pyarrow.schema(fields, metadata=metadata)
