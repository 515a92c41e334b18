"""The inventory of the sources' files: their items, kept columns, and changes since a scan."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgcli.arrow import NULL, STRING, LossyCast, as_text, cast_column, json_column
from pgcli.errors import UsageError
from pgcli.inputs.file_table import (
    BELOW,
    IMAGE,
    LINE,
    NAMED,
    STDIN,
    TABLE,
    TEXT,
    FileRecord,
    make_table,
    no_stamps,
    not_files,
    read_arrow,
    read_records,
    sizes_and_times,
    to_arrow,
)
from pgcli.inputs.lines import Stdin
from pgcli.inputs.listing import source_files
from pgcli.inputs.options import (
    ReadOptions,
    describe_endings,
    ending,
    manifest_ending,
    named_columns,
)
from pgcli.inputs.paths import FAULTS, display_name
from pgcli.inputs.scan import Scan, check_unique, no_columns
from pgcli.inputs.tables import Table
from pgcli.records import Item
from pgcli.stores.urls import url_scheme
from pgcli.text import count

TYPES_HINT = "convert the column, or write a .jsonl file, which holds values of any types"
OPEN_TABLES = 4
#: Records of images that are Python objects at a time.
BLOCK = 4096
#: Rows of a table that are read at once.
TABLE_BLOCK = 16_000


class Change(NamedTuple):
    """A file that differs from its record; `is_touched` if only its modification time differs."""

    name: str
    items: range
    is_touched: bool
    is_image: bool = False


class Inventory:
    """An append-only table of the sources' files, in the order of their items.

    A generation is the table of files that a scan adds. Another process makes an equal inventory
    from the generations, the sources and the options, without a scan.
    """

    def __init__(
        self,
        sources: Sequence[str],
        options: ReadOptions,
        generations: Sequence[pa.Table],
        scan: Scan | None = None,
    ):
        self._options, self.generations = options, tuple(generations)
        self._sources = source_files(sources, options)
        self._files = pa.concat_tables(self.generations or [make_table([])])
        self._kinds = self._files["kind"].to_numpy()
        self._set_rows(self._files["rows"].fill_null(0).to_numpy())
        self._tables: dict[int, Table] = {}
        self._arrives = STDIN in self._kinds
        #: The number of items; None before the end of standard input that is read as it arrives.
        self.total = None if self._arrives else int(self._rows.sum())
        self._changed: Mapping[int, bool] = scan.changed if scan else {}
        self._known = scan.known_files if scan else 0
        #: The number of items whose known files were deleted.
        self.gone = sum(int(self._rows[record]) for record in scan.removed) if scan else 0
        #: Files and members of archives that are skipped, by ending.
        self.ignored = Counter[str](scan.ignored if scan else ())
        for counts in self._files["skipped"].drop_null().to_pylist():
            self.ignored += Counter(dict(counts))

    @classmethod
    def scan(
        cls,
        sources: Sequence[str],
        options: ReadOptions | None = None,
        known: Inventory | None = None,
    ) -> Inventory:
        """The inventory of the sources, with the names that the user typed.

        `known` files keep their places; new files are the next generation. Raises UsageError for a
        name that is not a source, ManifestError for an unreadable manifest and for a repeated id,
        and NoInputError without an image.

        Ids of rows and names of image files must be unique. Rows without an id may name one image.
        """
        options = options or ReadOptions()
        if list(sources).count("-") > 1:
            raise UsageError("standard input (`-`) is a source twice", hint="name it once")
        recorded = known.generations if known is not None else ()
        before = known._files if known is not None else make_table([])
        scan = Scan(source_files(sources, options), options, before)
        table = scan.records()
        inventory = cls(sources, options, [*recorded, table] if len(table) else recorded, scan)
        if inventory.total == 0:
            raise scan.no_input(has_only_tables=set(inventory._kinds.tolist()) == {TABLE})
        if options.refuses_prompts and inventory.has_prompts:
            raise UsageError(
                "<--prompt=> conflicts with the prompts in the manifest, in the column "
                f"{options.prompt_column!r}",
                hint="omit <--prompt=>, or name another column with <--prompt-column=>",
            )
        has_unique_names = inventory.is_folder and len(sources) == 1
        is_grown = inventory._rows[len(before) :].any()
        if is_grown and not (options.repeats_ids or has_unique_names):
            scan.hashes.extend(hash(name) for name, _ in inventory._ids(len(before)))
            check_unique(scan.hashes, inventory._ids)
        return inventory

    @classmethod
    def of_texts(cls, texts: Sequence[str], options: ReadOptions | None = None) -> Inventory:
        """An item for each text; the text is the prompt, and the index is the id."""
        options = options or ReadOptions()
        if columns := (*options.keep, *options.fields):
            raise no_columns("a list of texts", columns[0])
        if options.names:
            raise UsageError(
                "<--include=> and <--exclude=> choose images by their names, and these are texts",
                hint="omit <--include=> and <--exclude=>",
            )
        records = (FileRecord(0, NAMED, TEXT, text.encode()) for text in texts)
        return cls([], options, [make_table(records)])

    @classmethod
    def load(
        cls, files: Sequence[bytes | Path], sources: Sequence[str], options: ReadOptions
    ) -> Inventory:
        """The inventory in Arrow files that `to_arrow` wrote, one per generation. Scans nothing.

        Raises OutputExists for any other file, and for a file of other sources.
        """
        generations = [read_arrow(file, f"inputs/{n}.arrow") for n, file in enumerate(files)]
        inventory = cls(sources, options, generations)
        source_N = inventory._files["source"].to_numpy()
        if ((source_N >= len(sources)) & (inventory._kinds != TEXT)).any():
            raise not_files("inputs/")
        return inventory

    def to_arrow(self, generation: int) -> bytes:
        """The Arrow file of a generation."""
        return to_arrow(self.generations[generation])

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """The counts of images and of manifest rows, by ending."""
        counts = Counter[str]()
        columns = (self._files[name].to_pylist() for name in ("source", "place", "name"))
        for number, (source, place, name) in enumerate(zip(*columns, strict=True)):
            rows, kind = int(self._rows[number]), self._kinds[number]
            if rows and kind in (IMAGE, TABLE):
                path = self._sources[source].file_name(place, name)
                kind_name = ending(path) if kind == IMAGE else f"rows of {manifest_ending(path)}"
                counts[kind_name] += rows
        return counts

    @property
    def has_columns(self) -> bool:
        """Whether some items are rows of manifests or lines of standard input."""
        return bool(np.isin(self._kinds, (TABLE, STDIN, LINE)).any())

    @property
    def columns(self) -> list[str]:
        """The columns of all manifests and archives, each once."""
        tables = (table.record.columns or () for table in self._each_table())
        return [*dict.fromkeys(name for names in tables for name in names)]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Remarks about the sources: a verb and its object."""
        skipped = ", ".join(describe_endings(self.ignored))
        dotted = pc.sum(self._files["by_last_dot"]).as_py() or 0
        return [
            *([("skipped", skipped)] if skipped else []),
            *(
                [("keyed", f"{count(dotted, 'archive')} by the last dot of names")]
                if dotted
                else []
            ),
        ]

    @property
    def is_folder(self) -> bool:
        """Whether all items are images below folders."""
        is_below = self._files["place"].to_numpy() == BELOW
        return bool((is_below & (self._kinds == IMAGE)).all())

    @property
    def has_prompts(self) -> bool:
        """Whether items have prompts of their own."""
        column = self._options.prompt_column
        is_stdin = bool(np.isin(self._kinds, (STDIN, LINE)).any())
        return (
            TEXT in self._kinds
            or (is_stdin and self._options.requires_prompts)
            or any(column in (table.record.columns or ()) for table in self._each_table())
        )

    def check_kept(self) -> None:
        """Raise UsageError for kept values of new files that do not fit the types of their columns.

        Files after the first scan may add no columns.
        """
        if not self.kept or self.total is None:
            return
        schema, columns = self.kept_schema, set[str]()
        texts = pa.schema([(name, STRING) for name in schema.names])
        for number, _, items in self._blocks():
            own = self._table(number).kept_schema if self._kinds[number] == TABLE else texts
            if number < len(self.generations[0]):
                columns.update(own.names)
            elif new := [name for name in own.names if name not in columns]:
                raise UsageError(
                    f"{self._shown(number)} has the column {new[0]!r}, which <--keep=> '*' copies, "
                    "and the files of the output have none",
                    hint=TYPES_HINT,
                )
            if number >= self._known and any(schema.field(f.name).type != f.type for f in own):
                self.kept_table(items.start, items.stop)

    # --- items and their kept columns

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

    def changes(self, saved: Callable[[range], bool]) -> Change | None:
        """The first of `each_change`."""
        return next(self.each_change(saved, no_stamps()), None)

    def each_change(self, saved: Callable[[range], bool], stamps: np.ndarray) -> Iterator[Change]:
        """The known files that changed, if rows of their items are saved.

        A changed table counts without saved rows, too: its row count may differ. `other_files`
        compares images that have stamps.
        """
        for record, is_touched in sorted(self._changed.items()):
            items = self._range(record)
            is_image = self._kinds[record] == IMAGE
            if is_image and items.start < len(stamps) and stamps[items.start, 0]:
                continue
            if not is_image or saved(items):
                yield Change(self._shown(record), items, is_touched, is_image)

    def other_files(self, stamps: np.ndarray) -> Iterator[tuple[int, str, str]]:
        """The images that differ from their stamps in size or time: index, name and path of each.

        Listed images are compared by the size and time in the list. Images that rows name are
        looked up, each file once.
        """
        for number, row, items in self._blocks(0, min(self.total or 0, len(stamps))):
            known = stamps[items.start : items.stop]
            if not known[:, 0].any() or self._kinds[number] == IMAGE:
                continue
            if self._kinds[number] == TABLE:
                table = self._table(number)
                names, numbers = table.image_paths(row, row + len(items))
                files = [name and os.path.join(table.file.base, name) for name in names]  # noqa: PTH118
            else:
                images = [*self._items(items.start, items.stop)]
                names, files = [i.image for i in images], [i.path for i in images]
                numbers = np.arange(len(items))
            is_other = (known[:, :2] != sizes_and_times(files)[numbers]).any(axis=1)
            for at in np.flatnonzero(is_other & (known[:, 0] > 0)).tolist():
                name, file = names[numbers[at]], files[numbers[at]]
                if name is not None and file is not None:
                    yield items[at], name, file
        for number in self._listed_otherwise(stamps).tolist():
            item = self._item(self._record(number), int(self._ends[number]) - 1)
            if item.path is not None and url_scheme(item.path) is None:
                yield item.index, item.image, item.path

    def lists(self, index: int) -> bool:
        """Whether an item is a file of the list, with its size and time."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        return bool(self._kinds[number] == IMAGE) and self._files["size"][number].is_valid

    def _listed_otherwise(self, stamps: np.ndarray) -> np.ndarray:
        """The records of listed images that differ from their stamps in size or time."""
        numbers, sources = np.arange(len(self._rows)), self._files["source"].to_numpy()
        sizes, times = (
            self._files[name].fill_null(-1).to_numpy().copy() for name in ("size", "mtime_ns")
        )
        is_image = self._kinds == IMAGE
        for source in np.unique(sources[is_image & (self._rows == 0)]).tolist():
            of_source = is_image & (sources == source)
            firsts, newer = (numbers[of_source & has] for has in (self._rows > 0, self._rows == 0))
            names = [
                self._files["name"].take(pa.array(n)).combine_chunks() for n in (newer, firsts)
            ]
            places = firsts[pc.index_in(names[0], value_set=names[1]).to_numpy()]
            sizes[places], times[places] = sizes[newer], times[newer]
        images = numbers[is_image & (self._rows > 0) & (self._ends <= len(stamps))]
        known = stamps[self._ends[images] - 1]
        is_other = (sizes[images] != known[:, 0]) | (times[images] != known[:, 1])
        others: np.ndarray = images[(known[:, 0] > 0) & is_other]
        return others

    def _ids(self, tables: int | None = None) -> Iterator[tuple[str, str]]:
        """All ids with their positions; those in tables only of the first `tables` records."""
        for number, row, items in self._blocks():
            if self._kinds[number] == TABLE:
                is_read = row == 0 and (tables is None or number < tables)
                if is_read and number not in self._changed:
                    yield from self._table(number).ids()
                continue
            for _, record in self._numbered(number, items):
                if record.kind == IMAGE:
                    source = self._sources[record.source]
                    yield source.located(record.place, record.name)[1], display_name(source.name)
                elif record.kind == LINE:
                    yield from self._stdin.ids(record)
