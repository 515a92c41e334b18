"""Reads JSON lines: an object on each line, which names its columns itself."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from pgcli.errors import ManifestError
from pgcli.sources.readers.bookmarks import Bookmark
from pgcli.sources.readers.lines import parse_object, raw_lines, without_mark
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow
from pgcli.sources.source_part import RowSlice


def rows(manifest: Manifest, wanted: Collection[str]) -> Iterator[ManifestRow]:
    """A row for each line that is not blank. Raises ManifestError."""
    return rows_between(manifest, wanted, RowSlice(0, sys.maxsize))


def rows_between(
    manifest: Manifest, wanted: Collection[str], part: RowSlice
) -> Iterator[ManifestRow]:
    """Some of the rows; of those before them at most `bookmarks.EVERY` lines are read."""
    row, offset, skipped = manifest.bookmarks.before(part.start) or Bookmark(0, 0, 0)
    for number, raw in raw_lines(manifest.location, skipped, offset):
        if row >= part.stop:
            return
        manifest.bookmarks.add(row, offset, number - 1)
        offset += len(raw)
        line = without_mark(number, raw)
        if not line.strip():
            continue
        if row >= part.start:
            try:
                yield ManifestRow(f"line {number}", parse_object(line))
            except ValueError as problem:
                raise ManifestError(f"{manifest.location}, line {number}: {problem}") from problem
        row += 1


JSON_LINES = ManifestReader(rows, rows_between=rows_between)
