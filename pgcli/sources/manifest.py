"""Manifests as sources: checked once when opened, then streamed."""

from __future__ import annotations

import os
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.records import Item
from pgcli.regular_file import file_status
from pgcli.remote import RemoteFile
from pgcli.remote.urls import parent_url
from pgcli.sources.chosen_rows import ChosenRows
from pgcli.sources.hive import partition_columns
from pgcli.sources.image_location import ImageLocation, locate_local, locate_remote, locate_url
from pgcli.sources.kept_columns import ALL, KeptTypes, expand
from pgcli.sources.manifest_file import FileLocation, path_of
from pgcli.sources.paths import display_name, url_scheme
from pgcli.sources.read_options import ReadOptions, ReadScan, Track, no_scan
from pgcli.sources.readers import load_reader, manifest_ending
from pgcli.sources.readers.bookmarks import Bookmarks
from pgcli.sources.readers.reader import Manifest, ManifestRow
from pgcli.sources.row_item import check_row, image_name, row_id, row_name, row_to_item
from pgcli.sources.row_prompts import columns_hint
from pgcli.sources.seen_ids import RepeatedIds, digest, repeated_digests
from pgcli.sources.source_part import RowSlice
from pgcli.sources.table_scan import MIN_STORED_ROWS, TableScan, scan_key, scan_name

#: Column names collected of JSON lines, where each row may name its own.
MAX_COLUMNS = 10_000
MAX_SUSPECTS = 1000  # repeated digests that are checked for one error message
NO_ID = 2**63  # stands, with the row added, for the digest of an id


class ManifestSource:
    """A manifest as a source: its rows are counted and checked first, and read again by each pass.

    Raises ManifestError for invalid rows, repeated ids and missing prompts, and UsageError for
    columns that do not exist. Where bad rows are tolerated they become faults instead, and a
    repeated id is replaced by the image's name.
    """

    def __init__(self, name: str, location: FileLocation, options: ReadOptions):
        self.name = display_name(name)
        self.location = location
        self.ignored: Counter[str] = Counter()
        #: The status of a local file before it was first read.
        self.status = b"" if isinstance(location, RemoteFile) else file_status(location)
        self._root: str | None = None
        if isinstance(location, RemoteFile):
            self._folder = parent_url(location.address)
        else:
            self._folder = os.path.dirname(location)  # noqa: PTH120 - Path would drop a leading ./
            if not options.allow_outside_root:
                self._root = os.path.realpath(self._folder or ".")
        self._ending = manifest_ending(path_of(location)) or ""
        self._reader = load_reader(self._ending)
        self._partitions = partition_columns(path_of(location))
        self._options = replace(
            options,
            tolerates_bad_rows=self._reader.tolerates_bad_rows,
            track=iter,
            read_scan=no_scan,
        )
        self._repeated = RepeatedIds(array("Q"), array("Q"))
        self._chosen = ChosenRows()
        self._known: frozenset[str] = frozenset()
        self._manifest = Manifest(location, self.name, options.image_column, Bookmarks())
        self._is_scan_stored = False
        self._scan = self._stored_scan(options.read_scan) or self._scan_rows(options.track)
        self._use_scan()

    @property
    def kinds(self) -> Counter[str]:
        """The number of rows, by the manifest's ending."""
        return Counter({f"rows of {self._ending}": self.total})

    def rows(self, first: int, part: RowSlice) -> Iterator[Item]:
        """The items of a part of the chosen rows; `first` is the index of the first of them."""
        locate, name, options = self._locate, self.name, self._options
        part = self._chosen.in_table(part)
        rows = self._reader.read(self._manifest, self._wanted(), part)
        for number, row in enumerate(rows, part.start):
            position = self._chosen.position(number)
            if position is None:
                continue
            try:
                row = self._with_partitions(row)
                item = row_to_item(row, first + position, options, locate=locate, manifest=name)
            except ManifestError as problem:
                raise self._with_name(problem) from problem
            if self._repeated.is_repeat(item.id, number):
                item = replace(item, id=item.image)
            yield item if item.data is None else replace(item, table_status=self.status)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names that the kept columns have in the output."""
        return tuple(column.output for column in self._options.kept)

    def kept_types(self) -> KeptTypes:
        """The type of each kept column, by its name in the output."""
        kept = self._options.kept
        names = {column.source for column in kept} - self._partitions.keys()
        known = dict(self._reader.types(self._manifest, names)) if self._reader.types else {}
        if self._partitions.keys() & {column.source for column in kept}:
            import pyarrow  # slow to import, and needed for Parquet output only

            known |= dict.fromkeys(self._partitions, pyarrow.string())
        return {column.output: known.get(column.source) for column in kept}

    def _locate(self, path: str) -> ImageLocation:
        if url_scheme(path):
            return locate_url(path, allow_urls=self._options.url_reader is not None)
        if isinstance(self.location, RemoteFile):
            return locate_remote(self._folder, path)
        return locate_local(self._folder, path, self._root)

    def _wanted(self) -> set[str]:
        """All columns that items are made of."""
        options = self._options
        kept = {column.source for column in options.kept}
        optional = self._known.intersection(options.optional_fields)
        named = {options.image_column, *kept, *options.fields}
        return named | optional | self._checked_columns()

    def _checked_columns(self) -> set[str]:
        """The columns that are checked in every row: ids, prompts, choices, regions."""
        options = self._options
        names = {options.id_column, options.region_column}
        if options.requires_prompts:
            names.add(options.prompt_column)
        if options.choices_column is not None:
            names.add(options.choices_column)
        return names

    def _rows(self, wanted: set[str]) -> Iterator[ManifestRow]:
        """All rows of the file, without the images in them."""
        whole = RowSlice(0, sys.maxsize, lambda row: False)
        return map(self._with_partitions, self._reader.read(self._manifest, wanted, whole))

    def _with_partitions(self, row: ManifestRow) -> ManifestRow:
        """The row with the columns that its file's folders stand for."""
        if not self._partitions:
            return row
        return row._replace(values={**self._partitions, **row.values})

    @property
    def new_scan(self) -> tuple[str, dict[str, Any]] | None:
        """What was found of a large table, with the name to store it by.

        None where it was stored before, and where the size of a table at a URL cannot be read now.
        """
        is_small = self._scan.total < MIN_STORED_ROWS and not isinstance(self.location, RemoteFile)
        if self._is_scan_stored or is_small:
            return None
        try:
            return scan_name(self.location), self._scan.values(self._scan_key())
        except OSError:
            return None

    def _stored_scan(self, read_scan: ReadScan) -> TableScan | None:
        """What an earlier process found of this table, with these options."""
        values = read_scan(scan_name(self.location))
        found = None if values is None else TableScan.from_values(values, self._scan_key())
        self._is_scan_stored = found is not None
        return found

    def _scan_key(self) -> str:
        return scan_key(self.location, self.status, self._options)

    def _scan_rows(self, track: Track) -> TableScan:
        """Count and check the rows, in eight bytes of memory for each id."""
        header = self._reader.columns and self._reader.columns(self._manifest)
        known = dict.fromkeys([*(header or ()), *self._partitions])
        if header is not None:
            self._resolve_columns(known)
        digests, total = array("Q"), 0
        scanned = self._checked_columns() | ({ALL} if ALL in self._options.keep else set())
        for row in track(self._rows(scanned)):
            total += 1
            if header is None and len(known) < MAX_COLUMNS:
                known |= dict.fromkeys(row.values)
            try:
                id_ = check_row(row, self._options)
            except ManifestError as problem:
                raise self._with_name(problem) from problem
            if self._options.repeats_ids:
                continue
            if id_ is not None:
                digests.append(digest(id_))
            elif self._reader.tolerates_bad_rows:  # so that the place is the row
                digests.append(NO_ID + total)
        repeated = self._repeated_ids(digests)
        return TableScan(total, tuple(known), repeated, self._manifest.bookmarks)

    def _use_scan(self) -> None:
        """Set what follows from the scan; of the rows, the names are read where these choose."""
        scan = self._scan
        self._manifest = self._manifest._replace(bookmarks=scan.bookmarks)
        self._repeated = scan.repeated
        self.has_prompts = self._options.prompt_column in scan.columns
        if scan.total:
            self._resolve_columns(scan.columns)
        self._chosen = ChosenRows(array("Q", self._choose()) if self._options.names else None)
        self.total = scan.total if self._chosen.numbers is None else len(self._chosen.numbers)
        self.has_excluded = self.total < scan.total
        # is the first row valid, with all its columns?
        next(self.rows(0, RowSlice(0, min(1, self.total), lambda row: False)), None)

    def _choose(self) -> Iterator[int]:
        """The numbers of the rows whose names are accepted."""
        options = self._options
        for number, row in enumerate(self._rows({options.id_column, options.image_column})):
            try:
                name = row_name(row, options) or ""
                if self._repeated.is_repeat(name, number):
                    name = image_name(row, options) or ""
            except ManifestError as problem:
                raise self._with_name(problem) from problem
            if options.names.accepts(name):
                yield number

    def _resolve_columns(self, known: Collection[str]) -> None:
        """Set which columns are kept. Raises UsageError for a wanted column that does not exist."""
        self._known = frozenset(known)
        kept = expand(self._options.keep, known, self._options.image_column)
        self._options = replace(self._options, kept=kept)
        for name in sorted(self._wanted() - {ReadOptions.id_column, ReadOptions.region_column}):
            if name not in known:
                message = f"{self.name} has no column {name!r}"
                raise UsageError(message, hint=columns_hint(known, name, self._options))

    def _repeated_ids(self, digests: array[int]) -> RepeatedIds:
        """The ids that are given twice, of a table that may have such. Raises ManifestError.

        Equal digests may be different ids. Where bad rows are tolerated, only a column that the
        user named must not repeat.
        """
        repeated = repeated_digests(digests)
        if self._reader.tolerates_bad_rows and self._options.id_column == ReadOptions.id_column:
            return repeated
        suspects = set(repeated.digests[:MAX_SUSPECTS])
        positions: dict[str, str] = {}
        for row in self._rows({self._options.id_column}) if suspects else ():
            id_ = row_id(row, self._options)
            if id_ is None or digest(id_) not in suspects:
                continue
            if id_ in positions:
                both = f"{positions[id_]} and {row.position}"
                hint = "ids name rows; --id-column selects another column"
                raise ManifestError(f"{self.name} gives the id {id_!r} twice: {both}", hint=hint)
            positions[id_] = row.position
        return RepeatedIds(array("Q"), array("Q"))

    def _with_name(self, problem: ManifestError) -> ManifestError:
        """The error of a row with the manifest's name in front."""
        return ManifestError(f"{self.name}, {problem}", hint=problem.hint)
