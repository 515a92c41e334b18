"""An inventory: the files of all sources in the order of their items, which are read by number."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgcli.arrow_types import (
    NULL,
    STRING,
    TYPES_HINT,
    Kinds,
    UnfitValue,
    add_kinds,
    as_text,
    cast_table,
    common_type,
    fit_table,
)
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
    not_files,
    read_arrow,
    read_records,
    to_arrow,
)
from pgcli.inputs.listing import SourceFiles
from pgcli.inputs.options import ReadOptions, named_columns
from pgcli.inputs.paths import display_name
from pgcli.inputs.readers import describe_endings, ending, manifest_ending
from pgcli.inputs.scan import Scan, check_unique
from pgcli.inputs.stamps import no_stamps, sizes_and_times
from pgcli.inputs.stdin import Stdin
from pgcli.inputs.tables import Table
from pgcli.inputs.walk import FAULTS
from pgcli.records import Item
from pgcli.stores.urls import url_scheme
from pgcli.wording import count

OPEN_TABLES = 4
#: Records of images that are Python objects at a time.
BLOCK = 4096
#: Rows of a table that are read at once.
TABLE_BLOCK = 16_000
SPLIT_NOTE = "in archives whose names agree up to the first dot"


class Change(NamedTuple):
    """A file that is not as recorded: its name, its items, whether only its time is another, and
    whether it is an image.
    """

    name: str
    items: range
    is_touched: bool
    is_image: bool = False


class Inventory:
    """An append-only table of files, in the order of their items: what the sources hold.

    A generation is what a scan found that was new. All generations, the sources and the options
    make an equal inventory in another process, without a scan. Each iteration reads the items
    again, except for those of standard input, whose number is not known before (`total` is None).
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
        self._changed: Mapping[int, bool] = scan.changed if scan else {}
        #: The number of items of known files that are not there any more.
        self.gone = scan.gone if scan else 0
        self._files = pa.concat_tables(self.generations or [make_table([])])
        #: Files and members of archives that are skipped, by ending.
        self.ignored = Counter[str](scan.ignored if scan else ())
        for counts in self._files["skipped"].drop_null().to_pylist():
            self.ignored += Counter(dict(counts))
        self._kinds = self._files["kind"].to_numpy()
        self._set_rows(self._files["rows"].fill_null(0).to_numpy())
        self._tables: dict[int, Table] = {}
        self._arrives = STDIN in self._kinds
        self.total = None if self._arrives else int(self._rows.sum())

    def _set_rows(self, rows: np.ndarray) -> None:
        """Set the numbers of items of the records, and the first item behind each."""
        self._rows, self._ends = rows, np.cumsum(rows)

    @classmethod
    def scan(
        cls,
        sources: Sequence[str],
        options: ReadOptions | None = None,
        known: Inventory | None = None,
    ) -> Inventory:
        """The inventory of the sources, with the names that the user typed.

        Files that are `known` keep their places; files that are new are the next generation. Raises
        UsageError for a name that is not a source, ManifestError for a manifest that cannot be
        read and for an id that is given twice, and NoInputError if there is no image.

        Ids are given by the rows that have one, and by the names of the files that are sources or
        in them. A row without an id does not give that of its image: several rows may ask about
        one image, in a manifest and on lines of standard input.
        """
        options = options or ReadOptions()
        if list(sources).count("-") > 1:
            raise UsageError("standard input (`-`) is named twice", hint="name it once")
        recorded = known.generations if known is not None else ()
        before = known._files if known is not None else make_table([])
        scan = Scan(source_files(sources, options), options, before)
        table = scan.records()
        inventory = cls(sources, options, [*recorded, table] if len(table) else recorded, scan)
        if inventory.total == 0:
            raise scan.no_input(has_only_tables=set(inventory._kinds.tolist()) == {TABLE})
        if options.refuses_prompts and inventory.has_prompts:
            raise UsageError(
                "<--prompt=> is given, and the manifest has prompts in its prompt column "
                f"{options.prompt_column!r}",
                hint="leave out <--prompt=>, or name another column with <--prompt-column=>",
            )
        has_unique_names = inventory.is_folder and len(sources) == 1
        is_grown = inventory._rows[len(before) :].any()
        if is_grown and not (options.repeats_ids or has_unique_names):
            scan.hashes.extend(hash(name) for name, _ in inventory._ids(len(before)))
            check_unique(scan.hashes, inventory._ids)
        if recorded and options.keep and options.fixes_types:
            inventory._check_kept(len(before))
        return inventory

    @classmethod
    def of_texts(cls, texts: Sequence[str], options: ReadOptions | None = None) -> Inventory:
        """An item for each text, whose prompt it is and whose id is its index."""
        options = options or ReadOptions()
        if columns := (*options.keep, *options.fields):
            message = f"a list of texts has no columns, so there is no {columns[0]!r}"
            raise UsageError(message, hint="only manifests have columns")
        if options.names:
            raise UsageError(
                "<--include=> and <--exclude=> choose images by their names, and these are texts",
                hint="leave them out",
            )
        records = (FileRecord(0, NAMED, TEXT, text.encode()) for text in texts)
        return cls([], options, [make_table(records)])

    @classmethod
    def load(
        cls, files: Sequence[bytes | Path], sources: Sequence[str], options: ReadOptions
    ) -> Inventory:
        """The inventory that `to_arrow` wrote, a file for each generation. Scans nothing.

        Raises OutputExists for a file that is none, or of other sources.
        """
        generations = [read_arrow(file, f"inputs/{n}.arrow") for n, file in enumerate(files)]
        inventory = cls(sources, options, generations)
        source_N = inventory._files["source"].to_numpy()
        if ((source_N >= len(sources)) & (inventory._kinds != TEXT)).any():
            raise not_files("inputs/")
        return inventory

    def to_arrow(self, generation: int) -> bytes:
        """The content of the Arrow file of a generation."""
        return to_arrow(self.generations[generation])

    # --- what there is

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """The number of images, and of the rows of manifests, by ending."""
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
        """Whether rows of manifests, or lines of standard input, are among the items."""
        return bool(np.isin(self._kinds, (TABLE, STDIN, LINE)).any())

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What to say about the sources besides their rows: a verb and what it is about."""
        skipped = ", ".join(describe_endings(self.ignored))
        split = pc.sum(self._files["split"]).as_py() or 0
        return [
            *([("skipped", skipped)] if skipped else []),
            *([("split", f"{count(split, 'image')} {SPLIT_NOTE}")] if split else []),
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

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the kept columns in the output, each once."""
        return tuple(self.kept_schema.names)

    @cached_property
    def kept_schema(self) -> pa.Schema:
        """The types of the kept columns: of Parquet its own, of JSON those of its values.

        Text where they are not known, and where nothing else holds the values of all files.
        """
        kinds: Kinds = {}
        end = len(self.generations[0]) if self._options.fixes_types and self.generations else None
        for table in self._each_table(stop=end) if self._options.keep else ():
            add_kinds(kinds, table.kept_schema)
        if not kinds:
            kinds = {column.output: [STRING] for column in named_columns(self._options.keep)}
        common = {
            name: types[0] if len(types) == 1 else common_type(types, exact=True)
            for name, types in kinds.items()
        }
        return pa.schema(
            [(name, STRING if kind == NULL else kind) for name, kind in common.items()]
        )

    def _each_table(self, start: int = 0, stop: int | None = None) -> Iterator[Table]:
        """The tables of some records that have rows."""
        numbers = np.flatnonzero((self._kinds == TABLE) & (self._rows > 0))
        return (
            self._table(n) for n in numbers.tolist() if start <= n and (stop is None or n < stop)
        )

    def _table(self, number: int) -> Table:
        """The table of a record; the last few stay open, so that reading them goes on."""
        if number not in self._tables:
            if len(self._tables) == OPEN_TABLES:
                self._tables.pop(next(iter(self._tables))).close()
            record = self._record(number)
            self._tables[number] = self._sources[record.source].open_table(record)
        return self._tables[number]

    def _record(self, number: int) -> FileRecord:
        return next(read_records(self._files.slice(number, 1)))

    # --- items

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def items(
        self, start: int = 0, stop: int | None = None, *, images: bool = True
    ) -> Iterator[Item]:
        """The items from `start` to before `stop`, without reading others.

        Without `images` the bytes of images are not read of tables. Where standard input takes
        part, the items before `start` are read too. Raises ManifestError and UsageError.
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
        """Items from `start` to before `stop` that are read at once: rows of a table, or files.

        Each block is the number of the first record, the first of its rows, and the items, which
        are of one kind.
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
        """The records of a block of files from a number on, each with the index of its item."""
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
        item = Item(index, row_id, image, path, fault=fault, root=root)
        if not (options.keep or options.fields):
            return item
        kept = {column.output: image for column in named_columns(options.keep)}
        return replace(item, fields=dict.fromkeys(options.fields, image), kept=kept)

    @cached_property
    def _stdin(self) -> Stdin:
        return Stdin(self._options)

    def _arriving(self) -> Iterator[Item]:
        """All items, those of standard input as they arrive, which are counted then."""
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
        """The kept columns of the items from `start` to before `stop`, of the types of the schema.

        Raises ManifestError, and UsageError for a value that does not fit.
        """
        schema = self.kept_schema
        tables = [schema.empty_table()]
        for number, row, items in self._blocks(start, stop):
            known, own = None, schema
            if self._kinds[number] == TABLE:
                table = self._table(number)
                known, own = table.kept_arrays(row, row + len(items)), table.kept_schema
            if known is None:
                rows = [item.kept for item in self._items(items.start, items.stop, images=False)]
                columns = {name: [row.get(name) for row in rows] for name in own.names}
                known = pa.table(
                    [
                        as_text(columns[name]) if kind == STRING else pa.array(columns[name], kind)
                        for name, kind in zip(own.names, own.types, strict=True)
                    ],
                    schema=own,
                )
            is_later = self._options.fixes_types and number >= len(self.generations[0])
            try:
                tables.append((fit_table if is_later else cast_table)(known, schema))
            except UnfitValue as problem:
                row += problem.row
                is_table = self._kinds[number] == TABLE
                place = self._table(number).position(row) if is_table else self._shown(number)
                raise UsageError(f"{place}: {problem}", hint=TYPES_HINT) from problem
        return pa.concat_tables(tables)

    def _check_kept(self, first: int) -> None:
        """Raise UsageError for kept values of the records from one on that do not fit."""
        schema = self.kept_schema
        for table in self._each_table(first):
            if new := [name for name in table.kept_schema.names if name not in schema.names]:
                raise UsageError(
                    f"{table.name} has the column {new[0]!r}, which <--keep=> '*' copies, and the "
                    "files of the output have none",
                    hint=TYPES_HINT,
                )
        for number in range(first, len(self._kinds)):
            items = self._range(number)
            if self._kinds[number] == TABLE and items:
                own = self._table(number).kept_schema
                if any(own.field(name).type != schema.field(name).type for name in own.names):
                    for start in range(items.start, items.stop, BLOCK):
                        self.kept_table(start, min(start + BLOCK, items.stop))

    def find(self, row_id: str) -> Item | None:
        """The first item of an id."""
        index = self._indices.get(row_id)
        return None if index is None else next(self.items(index, index + 1))

    @cached_property
    def _indices(self) -> dict[str, int]:
        """The index of the first item of each id."""
        indices: dict[str, int] = {}
        for item in () if self._arrives else self._items(images=False):
            indices.setdefault(item.id, item.index)
        return indices

    # --- what changed

    def changes(self, saved: Callable[[range], bool]) -> Change | None:
        """The first of `each_change`."""
        return next(self.each_change(saved, no_stamps()), None)

    def each_change(self, saved: Callable[[range], bool], stamps: np.ndarray) -> Iterator[Change]:
        """The known files that are others now, and of whose items some rows are saved.

        A table of which no rows are saved is a change all the same, as it may have other numbers of
        rows. Images that have stamps are compared by these: see `other_files`.
        """
        for record, is_touched in sorted(self._changed.items()):
            items = self._range(record)
            is_image = self._kinds[record] == IMAGE
            if is_image and items.start < len(stamps) and stamps[items.start, 0]:
                continue
            if not is_image or saved(items):
                yield Change(self._shown(record), items, is_touched, is_image)

    def other_files(self, stamps: np.ndarray) -> Iterator[tuple[int, str, str]]:
        """The images with stamps that may be other files now: index, name and path of each.

        Those that were listed have the size and the time of the list, others are looked at: each
        file that several rows of a table name once for all of them.
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

    def _listed_otherwise(self, stamps: np.ndarray) -> np.ndarray:
        """The records of images whose newest size or time is not that of their stamps."""
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

    def _range(self, number: int) -> range:
        end = int(self._ends[number])
        return range(end - int(self._rows[number]), end)

    def _shown(self, number: int) -> str:
        record = self._record(number)
        if record.kind not in (IMAGE, TABLE):
            return "standard input"
        return self._sources[record.source].located(record.place, record.name)[2]

    def _ids(self, tables: int | None = None) -> Iterator[tuple[str, str]]:
        """The ids that are given, each with its position; of the first records alone in tables."""
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


def source_files(sources: Sequence[str], options: ReadOptions) -> list[SourceFiles]:
    """The sources by their numbers."""
    is_alone = len(sources) == 1
    return [SourceFiles(n, name, options, is_alone=is_alone) for n, name in enumerate(sources)]
