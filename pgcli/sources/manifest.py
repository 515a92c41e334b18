"""Manifests as sources: checked once when opened, then streamed."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from pgcli.errors import ManifestError, UsageError
from pgcli.records import Item
from pgcli.remote import RemoteFile
from pgcli.remote.urls import parent_url
from pgcli.sources.image_location import ImageLocation, locate_local, locate_remote, locate_url
from pgcli.sources.manifest_file import FileLocation, path_of
from pgcli.sources.paths import display_name, url_scheme
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers import load_reader, manifest_ending
from pgcli.sources.readers.reader import Manifest, ManifestRow
from pgcli.sources.row_item import check_row, row_id, row_to_item
from pgcli.sources.seen_ids import SeenIds, digest, repeated_digests

#: Column names collected of JSON lines, where each row may name its own.
MAX_COLUMNS = 10_000
MAX_SUSPECTS = 1000  # repeated digests that are checked for one error message
MAX_LISTED_COLUMNS = 50


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
        self._root: str | None = None
        if isinstance(location, RemoteFile):
            self._folder = parent_url(location.address)
        else:
            self._folder = os.path.dirname(location)  # noqa: PTH120 - Path would drop a leading ./
            if not options.allow_outside_root:
                self._root = os.path.realpath(self._folder or ".")
        self._ending = manifest_ending(path_of(location)) or ""
        self._reader = load_reader(self._ending)
        self._options = replace(options, tolerates_bad_rows=self._reader.tolerates_bad_rows)
        self._repeated = array("Q")
        self._manifest = Manifest(location, self.name, options.image_column)
        self._check()

    @property
    def kinds(self) -> Counter[str]:
        """The number of rows, by the manifest's ending."""
        return Counter({f"rows of {self._ending}": self.total})

    def items(self, first: int) -> Iterator[Item]:
        """The manifest's items, numbered from `first`."""
        seen, locate, name = SeenIds(self._repeated), self._locate, self.name
        for index, row in enumerate(self._rows(self._wanted()), first):
            try:
                item = row_to_item(row, index, self._options, locate=locate, manifest=name)
            except ManifestError as problem:
                raise self._with_name(problem) from problem
            yield replace(item, id=item.image) if seen.add(item.id) else item

    def _locate(self, path: str) -> ImageLocation:
        if url_scheme(path):
            return locate_url(path, allow_urls=self._options.url_reader is not None)
        if isinstance(self.location, RemoteFile):
            return locate_remote(self._folder, path)
        return locate_local(self._folder, path, self._root)

    def _wanted(self) -> set[str]:
        """All columns that items are made of."""
        options = self._options
        return {options.image_column, *options.keep, *options.fields} | self._checked_columns()

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
        return self._reader.rows(self._manifest, wanted)

    def _check(self) -> None:
        """Count and check the rows, in eight bytes of memory for each id."""
        header = self._reader.columns and self._reader.columns(self._manifest)
        known = set(header or ())
        if header is not None:
            self._check_columns(known)
        digests, total = array("Q"), 0
        for row in self._rows(self._checked_columns()):
            total += 1
            if header is None and len(known) < MAX_COLUMNS:
                known.update(row.values)
            try:
                id_ = check_row(row, self._options)
            except ManifestError as problem:
                raise self._with_name(problem) from problem
            if id_ is not None:
                digests.append(digest(id_))
        self.total = total
        self.has_prompts = self._options.prompt_column in known
        if total:
            self._check_columns(known)
        self._check_ids(digests)
        next(self.items(0), None)  # reads all columns, images too: is the first row valid?

    def _check_columns(self, known: set[str]) -> None:
        """Raise UsageError for a wanted column that does not exist."""
        for name in sorted(self._wanted() - {ReadOptions.id_column, ReadOptions.region_column}):
            if name not in known:
                listed = ", ".join(sorted(known)[:MAX_LISTED_COLUMNS])
                message = f"{self.name} has no column {name!r}"
                raise UsageError(message, hint=f"its columns are: {listed}")

    def _check_ids(self, digests: array[int]) -> None:
        """Raise ManifestError for the first repeated id. Equal digests may be different ids.

        Where bad rows are tolerated, only a column that the user named must not repeat.
        """
        repeated = repeated_digests(digests)
        if self._reader.tolerates_bad_rows and self._options.id_column == ReadOptions.id_column:
            self._repeated = repeated
            return
        suspects = set(repeated[:MAX_SUSPECTS])
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

    def _with_name(self, problem: ManifestError) -> ManifestError:
        """The error of a row with the manifest's name in front."""
        return ManifestError(f"{self.name}, {problem}", hint=problem.hint)
