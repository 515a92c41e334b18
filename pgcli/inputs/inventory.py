"""The inventory of all files of the sources, and the changes since it was made."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgcli.arrow import STRING
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
    sizes_and_times,
    to_arrow,
)
from pgcli.inputs.items import TYPES_HINT, FileItems, source_files
from pgcli.inputs.options import ReadOptions
from pgcli.inputs.paths import display_name
from pgcli.inputs.readers import describe_endings, ending, manifest_ending
from pgcli.inputs.scan import Scan, check_unique, no_columns
from pgcli.stores.urls import url_scheme
from pgcli.text import count


class Change(NamedTuple):
    """A file that differs from its record; `is_touched` if only its modification time differs."""

    name: str
    items: range
    is_touched: bool
    is_image: bool = False


class Inventory(FileItems):
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
        super().__init__(sources, options, generations)
        self._changed: Mapping[int, bool] = scan.changed if scan else {}
        self._known = scan.known_files if scan else 0
        #: The items whose known files were deleted.
        self.removed = [self._range(record) for record in scan.removed] if scan else []
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

        Ids must be unique among ids of rows and names of image files. Rows without an id may name
        the same image: several rows may ask about one image.
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

    # --- properties of the input

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

    # --- changes

    @property
    def gone(self) -> int:
        """The number of items whose known files were deleted."""
        return sum(map(len, self.removed))

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
