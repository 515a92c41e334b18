"""Manifests: files whose rows name pictures, gone through once before the first item is used."""

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
from pgcli.sources.duplicate_ids import SeenIds, digest, repeated_digests
from pgcli.sources.items import check, item, row_id
from pgcli.sources.manifest_file import Where, kind
from pgcli.sources.paths import (
    ImageLocation,
    display_name,
    locate_local,
    locate_remote,
    locate_url,
    url_scheme,
)
from pgcli.sources.readers import reader_of
from pgcli.sources.readers.reader import Manifest, ManifestRow
from pgcli.sources.source_options import ReadOptions

#: Column names that are remembered of JSON lines, whose rows may each name their own.
MOST_COLUMNS = 10_000


class ManifestSource:
    """A manifest as a source: counted and checked when made, streamed anew by each pass.

    Raises ManifestError for broken lines, ids given twice and missing prompts, UsageError for
    columns that do not exist. Where rows bear what is wrong with them, those are faults, and an id
    that was given before is not taken again.
    """

    def __init__(self, name: str, path: Where, reading: ReadOptions):
        self.name = display_name(name)
        self.path = path
        self.ignored: Counter[str] = Counter()
        self._root: str | None = None
        if isinstance(path, RemoteFile):
            self._folder = parent_url(path.address)
        else:
            self._folder = os.path.dirname(path)  # noqa: PTH120 - Path would drop a leading `./`
            if not reading.allow_outside_root:
                self._root = os.path.realpath(self._folder or ".")
        self._reader = reader_of(kind(path))
        self._reading = reading = replace(
            reading, tolerates_bad_rows=self._reader.tolerates_bad_rows
        )
        self._twice = array("Q")
        self._manifest = Manifest(path, self.name, reading.image_column)
        self._check()

    @property
    def kinds(self) -> Counter[str]:
        """How many rows there are, by the manifest's ending."""
        return Counter({f"rows of {kind(self.path)}": self.total})

    def items(self, first: int) -> Iterator[Item]:
        """The manifest's items, numbered from `first`."""
        met = SeenIds(self._twice)
        for index, row in enumerate(self._rows(self._wanted()), first):
            try:
                found = item(row, index, self._reading, place=self._place, holder=self.name)
            except ManifestError as problem:
                raise ManifestError(f"{self.name}, {problem}", hint=problem.hint) from problem
            yield replace(found, id=found.image) if met.before(found.id) else found

    def _place(self, path: str) -> ImageLocation:
        if url_scheme(path):
            return locate_url(path, allow_urls=self._reading.url_reader is not None)
        if isinstance(self.path, RemoteFile):
            return locate_remote(self._folder, path)
        return locate_local(self._folder, path, self._root)

    def _wanted(self) -> set[str]:
        reading = self._reading
        names = {reading.image_column, *reading.keep, *reading.fields}
        return names | self._asked()

    def _asked(self) -> set[str]:
        """The columns that say what is asked of which row: ids, prompts, choices, regions."""
        reading = self._reading
        names = {reading.id_column, reading.region_column}
        if reading.requires_prompts:
            names.add(reading.prompt_column)
        if reading.choices_column is not None:
            names.add(reading.choices_column)
        return names

    def _rows(self, wanted: set[str]) -> Iterator[ManifestRow]:
        return self._reader.rows(self._manifest, wanted)

    def _check(self) -> None:
        """Count the rows and find what is wrong with any, in memory of eight bytes for an id."""
        reading = self._reading
        named = self._reader.columns and self._reader.columns(self._manifest)
        known = set(named or ())
        if named is not None:
            self._check_columns(known)
        seen, total = array("Q"), 0
        for row in self._rows(self._asked()):
            total += 1
            if named is None and len(known) < MOST_COLUMNS:
                known.update(row.values)
            self._check_row(row, seen)
        self.total = total
        self.has_prompts = reading.prompt_column in known
        if total:
            self._check_columns(known)
        self._check_ids(seen)
        next(
            self.items(0), None
        )  # the images of Parquet were not read yet: is the first one sound?

    def _check_row(self, row: ManifestRow, seen: array[int]) -> None:
        try:
            given = check(row, self._reading)
        except ManifestError as problem:
            raise ManifestError(f"{self.name}, {problem}", hint=problem.hint) from problem
        if given is not None:
            seen.append(digest(given))

    def _check_columns(self, known: set[str]) -> None:
        for name in sorted(self._wanted() - {ReadOptions.id_column, ReadOptions.region_column}):
            if name not in known:
                listed = ", ".join(sorted(known)[:50])
                message = f"{self.name} has no column {name!r}"
                raise UsageError(message, hint=f"its columns are: {listed}")

    def _check_ids(self, seen: array[int]) -> None:
        """Raise for the first id given twice; equal digests are only a suspicion, looked into.

        Where rows bear that, only a column that the user named must not repeat.
        """
        twice = repeated_digests(seen)
        if self._reader.tolerates_bad_rows and self._reading.id_column == ReadOptions.id_column:
            self._twice = twice
            return
        suspects = set(twice[:1000])
        places: dict[str, str] = {}
        for row in self._rows({self._reading.id_column}) if suspects else ():
            given = row_id(row, self._reading)
            if given is None or digest(given) not in suspects:
                continue
            if given in places:
                message = (
                    f"{self.name} gives the id {given!r} twice: {places[given]} and {row.place}"
                )
                raise ManifestError(message, hint="ids name rows; --id-column picks another column")
            places[given] = row.place
