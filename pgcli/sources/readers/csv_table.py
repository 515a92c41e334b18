"""Reads CSV and TSV: the first line names the columns."""

from __future__ import annotations

import csv
import sys
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pgcli.errors import ManifestError
from pgcli.sources.manifest_file import FileLocation
from pgcli.sources.readers.lines import MAX_LINE_BYTES, TOO_LONG, raw_lines, without_mark
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow
from pgcli.sources.source_part import RowSlice

if TYPE_CHECKING:
    import pyarrow


def columns(manifest: Manifest, *, delimiter: str) -> tuple[str, ...]:
    """The columns that the first line names. Raises ManifestError."""
    return tuple(CsvTable(manifest.location, delimiter).header)


def rows(manifest: Manifest, wanted: Collection[str], *, delimiter: str) -> Iterator[ManifestRow]:
    """A row for each that is not empty; one may span several lines. Raises ManifestError."""
    return rows_between(manifest, wanted, RowSlice(0, sys.maxsize), delimiter=delimiter)


def rows_between(
    manifest: Manifest, wanted: Collection[str], part: RowSlice, *, delimiter: str
) -> Iterator[ManifestRow]:
    """Some of the rows; of those before them at most `bookmarks.EVERY` are read."""
    table = CsvTable(manifest.location, delimiter)
    header = table.header
    bookmark = manifest.bookmarks.before(part.start)
    if bookmark is not None:
        table = CsvTable(manifest.location, delimiter, bookmark.number, bookmark.offset)
    row = 0 if bookmark is None else bookmark.row
    while row < part.stop:
        manifest.bookmarks.add(row, table.offset, table.line)
        cells = table.next_row(len(header))
        if cells is None:
            return
        if row >= part.start:
            yield ManifestRow(f"line {table.line}", dict(zip(header, cells, strict=True)))
        row += 1


def types(manifest: Manifest, wanted: Collection[str]) -> dict[str, pyarrow.DataType]:
    """Text, for every column."""
    import pyarrow  # slow to import, and needed for Parquet output only

    return dict.fromkeys(wanted, pyarrow.string())


class CsvTable:
    """A table from an offset in its file on; `offset` and `line` are where reading stands."""

    def __init__(self, location: FileLocation, delimiter: str, line: int = 0, offset: int = 0):
        csv.field_size_limit(MAX_LINE_BYTES)  # the csv module has this setting per process only
        self._location, self.line, self.offset = location, line, offset
        self._row_bytes = 0  # of the current row, which may span several lines
        self._rows = csv.reader(self._lines(line, offset), delimiter=delimiter, strict=True)

    @property
    def header(self) -> list[str]:
        """The first row, with the names of the columns. Raises ManifestError."""
        header = self._next()
        if not header:
            raise ManifestError(
                f"{self._location} has no rows", hint="the first line names the columns"
            )
        if len(set(header)) < len(header):
            raise ManifestError(f"{self._location}, line 1: it names a column twice")
        return header

    def next_row(self, width: int) -> list[str] | None:
        """The next row that is not empty; None at the end. Raises ManifestError."""
        while (cells := self._next()) is not None:
            if cells and len(cells) != width:
                message = f"it has {len(cells)} columns, and the first line {width}"
                raise ManifestError(f"{self._location}, line {self.line}: {message}")
            if cells:
                return cells
        return None

    def _next(self) -> list[str] | None:
        self._row_bytes = 0
        try:
            return next(self._rows, None)
        except csv.Error as problem:
            raise ManifestError(f"{self._location}, line {self.line}: {problem}") from problem

    def _lines(self, number: int, offset: int) -> Iterator[str]:
        """Decoded lines, each counted as it is taken."""
        for current, line in raw_lines(self._location, number, offset):
            self.line, self.offset = current, self.offset + len(line)
            self._row_bytes += len(line)
            if self._row_bytes > MAX_LINE_BYTES:
                raise ManifestError(f"{self._location}, line {self.line}: the row {TOO_LONG}")
            if b"\0" in line:
                raise ManifestError(f"{self._location}, line {self.line}: it holds a NUL byte")
            try:
                yield without_mark(self.line, line).decode()
            except UnicodeDecodeError as problem:
                message = f"{self._location}, line {self.line}: it is not UTF-8"
                raise ManifestError(message) from problem


def reader(delimiter: str) -> ManifestReader:
    """The reader of tables with this delimiter."""
    return ManifestReader(
        partial(rows, delimiter=delimiter),
        partial(columns, delimiter=delimiter),
        rows_between=partial(rows_between, delimiter=delimiter),
        types=types,
    )


CSV, TSV = reader(","), reader("\t")
