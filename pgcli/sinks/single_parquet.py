"""One Parquet file, which is there when it is complete; its chunks wait beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow
from pyarrow import parquet

from pgcli.errors import OutputExists
from pgcli.rows import RowSchema
from pgcli.sinks import column_types
from pgcli.sinks.chunk_store import Chunk, chunks_in, metadata, published, rows_in, write
from pgcli.sinks.schema import TYPES, Row, table
from pgcli.state.run_state import State
from pgcli.state.state_folder import PARTS
from pgcli.state.write_errors import make_folder, sync, writing

WHOLE = "whole"


class SingleParquet:
    """A shelf whose chunks become one file at the end; those of an earlier end are in it.

    What type a kept column needs is known only then: a manifest may hold whole numbers for a
    million rows and a word in the next. `settings` is read then, too.
    """

    def __init__(self, state: State, layout: RowSchema, settings: Mapping[str, object]):
        self._state, self._layout, self._settings = state, layout, settings
        self._output = state.output
        self._parts = state.folder / PARTS
        self._before = chunks_in(self._output, state.run) if state.is_old else []
        self._added: dict[int, Chunk] = {}
        if state.is_old:
            for part in sorted(self._parts.glob("*")):
                self._added |= {chunk.number: chunk for chunk in chunks_in(part, state.run)}

    def chunks(self) -> dict[int, Chunk]:
        return {chunk.number: chunk for chunk in self._before} | self._added

    def rows(self, number: int) -> Iterator[Row]:
        if number in self._added:
            return rows_in(self._part(number))
        return (row for table in self._tables_before(number) for row in table.to_pylist())

    def put(self, chunk: Chunk, rows: list[Row]) -> None:
        beside = self._state.folder / "part"
        with writing(beside):
            make_folder(self._parts)
            told = metadata({}, self._state.run, [chunk])
            write(beside, table(rows, self._layout), rows, told)
        published(beside, self._part(chunk.number), replace=True)
        self._added[chunk.number] = chunk

    def finish(self) -> None:
        """Join the chunks, a row group each at least, and give the file its name."""
        if not self._added and self._before:
            return
        whole, schema = self._state.folder / WHOLE, self._schema()
        with writing(self._output):
            with parquet.ParquetWriter(whole, schema, compression="zstd") as writer:
                for each in self._tables():
                    columns = list(map(column_types.fitted, each.columns, schema.types))
                    writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
            sync(whole)
        if self._output.exists() and not self._before and not self._state.replaces:
            raise OutputExists(
                f"{self._output} was made by something else while this run went on",
                hint=f"all rows of this run are in {whole}: move it where you want it",
            )
        published(whole, self._output, replace=True)
        with writing(self._parts):
            for number in self._added:
                self._part(number).unlink()
        self._added.clear()

    def clear(self) -> None:
        with writing(self._state.folder):
            if self._parts.is_dir() and not any(self._parts.iterdir()):
                self._parts.rmdir()

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:06}"  # not .parquet: globs must not find it

    def _tables(self) -> Iterator[pyarrow.Table]:
        """The rows so far, a table for each row group."""
        for number in sorted(self.chunks()):
            if number in self._added:
                yield from groups(self._part(number))
            else:
                yield from self._tables_before(number)

    def _tables_before(self, number: int) -> Iterator[pyarrow.Table]:
        """The rows of a chunk that is in the output."""
        start = sum(chunk.rows for chunk in self._before if chunk.number < number)
        end = start + next(chunk.rows for chunk in self._before if chunk.number == number)
        at = 0
        for each in groups(self._output):
            first, last = max(start - at, 0), min(end - at, len(each))
            if first < last:
                yield each.slice(first, last - first)
            at += len(each)

    def _schema(self) -> pyarrow.Schema:
        """The columns of the whole file and what it says of itself."""
        fields = [(name, TYPES[name]) for name in self._layout.columns]
        for place, name in enumerate(self._layout.keep, start=len(fields)):
            kinds = {each.column(place).type for each in self._tables()}
            arrays = (each.column(place) for each in self._tables())
            fields.append((name, column_types.settled(kinds, arrays)))
        chunks = [chunk for _, chunk in sorted(self.chunks().items())]
        return pyarrow.schema(fields, metadata=metadata(self._settings, self._state.run, chunks))


def groups(file: Path) -> Iterator[pyarrow.Table]:
    """A Parquet file's row groups."""
    with writing(file), parquet.ParquetFile(file) as opened:
        for number in range(opened.num_row_groups):
            yield opened.read_row_group(number)
