"""Reads the items of a table of files by number: images, rows of tables, lines, texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

import numpy as np
import pyarrow as pa

from pgcli.arrow import NULL, STRING, LossyCast, as_text, cast_column, json_column
from pgcli.errors import UsageError
from pgcli.inputs.file_table import (
    BELOW,
    IMAGE,
    STDIN,
    TABLE,
    TEXT,
    FileRecord,
    make_table,
    read_records,
)
from pgcli.inputs.lines import Stdin
from pgcli.inputs.listing import SourceFiles
from pgcli.inputs.options import ReadOptions, named_columns
from pgcli.inputs.paths import FAULTS
from pgcli.inputs.tables import Table
from pgcli.records import Item

TYPES_HINT = "convert the column, or write a .jsonl file, which holds values of any types"
OPEN_TABLES = 4
#: Records of images that are Python objects at a time.
BLOCK = 4096
#: Rows of a table that are read at once.
TABLE_BLOCK = 16_000


class FileItems:
    """The items of the files of some sources, in the order of the files.

    `generations` are the tables of files that scans added, oldest first. Each iteration reads the
    items again, except for standard input that is read as it arrives: `total` is None before its
    end.
    """

    def __init__(
        self, sources: Sequence[str], options: ReadOptions, generations: Sequence[pa.Table]
    ):
        self._options, self.generations = options, tuple(generations)
        self._sources = source_files(sources, options)
        self._files = pa.concat_tables(self.generations or [make_table([])])
        self._kinds = self._files["kind"].to_numpy()
        self._set_rows(self._files["rows"].fill_null(0).to_numpy())
        self._tables: dict[int, Table] = {}
        self._arrives = STDIN in self._kinds
        self.total = None if self._arrives else int(self._rows.sum())

    def _set_rows(self, rows: np.ndarray) -> None:
        """Set the number of items of each record, and the index of the first item behind it."""
        self._rows, self._ends = rows, np.cumsum(rows)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the kept columns in the output, each once."""
        return tuple(self.kept_schema.names)

    @cached_property
    def kept_schema(self) -> pa.Schema:
        """The types of the kept columns: each has the type in the first file that has the column.

        Columns of Parquet have their own types, of JSON the types of their values; others are text.
        """
        kinds: dict[str, pa.DataType] = {}
        for table in self._each_table() if self._options.keep else ():
            for field in table.kept_schema:
                kinds.setdefault(field.name, STRING if field.type == NULL else field.type)
        if not kinds:
            kinds = {column.output: STRING for column in named_columns(self._options.keep)}
        return pa.schema(kinds)

    def _each_table(self) -> Iterator[Table]:
        """The tables with rows."""
        numbers = np.flatnonzero((self._kinds == TABLE) & (self._rows > 0))
        return map(self._table, numbers.tolist())

    def _table(self, number: int) -> Table:
        """The table of a record; the last few stay open, so that the next rows are read quickly."""
        if number not in self._tables:
            if len(self._tables) == OPEN_TABLES:
                self._tables.pop(next(iter(self._tables))).close()
            record = self._record(number)
            self._tables[number] = self._sources[record.source].open_table(record)
        return self._tables[number]

    def _record(self, number: int) -> FileRecord:
        return next(read_records(self._files.slice(number, 1)))

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def items(
        self, start: int = 0, stop: int | None = None, *, images: bool = True
    ) -> Iterator[Item]:
        """The items from `start` to before `stop`, without reading others.

        Without `images`, the bytes of images in tables are not read. If standard input is a source,
        the items before `start` are read too. Raises ManifestError and UsageError.
        """
        if self._arrives:
            yield from islice(self._arriving(), start, stop)
        else:
            yield from self._items(start, stop, images=images)

    def _items(
        self, start: int = 0, stop: int | None = None, *, images: bool = True
    ) -> Iterator[Item]:
        for number, row, items in self._blocks(start, stop):
            if self._kinds[number] == TABLE:
                rows = row, row + len(items)
                yield from self._table(number).items(items.start, *rows, images=images)
            else:
                for index, record in self._numbered(number, items):
                    yield self._item(record, index)

    def _blocks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int, range]]:
        """Blocks of the items from `start` to before `stop`: rows of one table, or files.

        Each block is the number of the first record, the number of its first row, and the items.
        """
        total = int(self._ends[-1]) if len(self._ends) else 0
        stop = total if stop is None else min(stop, total)
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            kinds = self._kinds[number : number + BLOCK]
            others = np.flatnonzero((kinds != kinds[0]) | (kinds == TABLE))
            count = max(1, int(others[0])) if len(others) else BLOCK
            end = int(self._ends[number : number + count][-1])
            items = range(start, min(stop, end, start + TABLE_BLOCK))
            yield number, start - self._range(number).start, items
            start = items.stop

    def _numbered(self, number: int, items: range) -> Iterator[tuple[int, FileRecord]]:
        """The records of a block of files, each with the index of its item."""
        last = int(np.searchsorted(self._ends, items[-1], side="right"))
        records = read_records(self._files.slice(number, last + 1 - number))
        return zip(items, (record for record in records if record.rows), strict=True)

    def _item(self, record: FileRecord, index: int) -> Item:
        """The item of an image, a line or a text."""
        if record.kind == TEXT:
            return Item(index, str(index), "", prompts=(record.name.decode(),))
        if record.kind != IMAGE:
            return self._stdin.item(record, index)
        files, options = self._sources[record.source], self._options
        path, row_id, image = files.located(record.place, record.name)
        root = None if options.allow_outside_root or record.place != BELOW else files.root
        fault = FAULTS[record.problem] if record.problem else None
        return Item(index, row_id, image, path, fault=fault, root=root)

    @cached_property
    def _stdin(self) -> Stdin:
        return Stdin(self._options)

    def _arriving(self) -> Iterator[Item]:
        """All items; lines of standard input as they arrive, counted at its end."""
        number = int(np.argmax(self._kinds == STDIN))
        first = index = int(self._ends[number] - self._rows[number])
        yield from self._items(0, first)
        for record in self._stdin.read(self._record(number).source):
            item = self._stdin.item(record, index)
            if self._options.names.accepts(item.id):
                yield item
                index += 1
        rows = self._rows.copy()
        rows[number] = index - first
        self._set_rows(rows)
        yield from self._items(index)

    def kept_table(self, start: int, stop: int) -> pa.Table:
        """The kept columns of the items from `start` to before `stop`, in the schema's types.

        Raises ManifestError, and UsageError for a value that does not fit.
        """
        schema = self.kept_schema
        tables = [schema.empty_table()]
        for number, row, items in self._blocks(start, stop):
            columns: Mapping[str, pa.ChunkedArray] | None = None
            if self._kinds[number] == TABLE:
                columns = self._table(number).kept_arrays(row, row + len(items))
            if columns is None:
                rows = [item.kept for item in self._items(items.start, items.stop, images=False)]
                values = {name: [row.get(name) for row in rows] for name in schema.names}
                columns = {
                    name: as_text(values[name]) if kind == STRING else json_column(values[name])
                    for name, kind in zip(schema.names, schema.types, strict=True)
                }
            try:
                arrays = []
                for field in schema:
                    column = columns.get(field.name, pa.nulls(len(items)))
                    arrays.append(cast_column(column, field.type))
            except LossyCast as problem:
                raise UsageError(
                    f"{self._shown(number)}: the kept column {field.name!r} has {problem}, its "
                    "type in the first file",
                    hint=TYPES_HINT,
                ) from problem
            tables.append(pa.table(arrays, schema=schema))
        return pa.concat_tables(tables)

    def _range(self, number: int) -> range:
        end = int(self._ends[number])
        return range(end - int(self._rows[number]), end)

    def _shown(self, number: int) -> str:
        record = self._record(number)
        if record.kind not in (IMAGE, TABLE):
            return "standard input"
        return self._sources[record.source].located(record.place, record.name)[2]


def source_files(sources: Sequence[str], options: ReadOptions) -> list[SourceFiles]:
    """The sources by their numbers."""
    is_alone = len(sources) == 1
    return [SourceFiles(n, name, options, is_alone=is_alone) for n, name in enumerate(sources)]
