"""Reads CSV and TSV: the first line names the columns."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from functools import partial

from pgcli.errors import ManifestError
from pgcli.sources.manifest_file import FileLocation
from pgcli.sources.readers.lines import MAX_LINE_BYTES, TOO_LONG, lines
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow


def columns(manifest: Manifest, *, delimiter: str) -> tuple[str, ...]:
    """The columns that the first line names. Raises ManifestError."""
    return tuple(next(_table(manifest.location, delimiter)))


def rows(manifest: Manifest, wanted: Collection[str], *, delimiter: str) -> Iterator[ManifestRow]:
    """A row for each that is not empty; one may span several lines. Raises ManifestError."""
    table = _table(manifest.location, delimiter)
    header = next(table)
    for number, *cells in table:
        yield ManifestRow(f"line {number}", dict(zip(header, cells, strict=True)))


def _text_lines(location: FileLocation, row_bytes: list[int]) -> Iterator[str]:
    """Decoded lines. `row_bytes` counts the bytes of the current row, which may span several."""
    for number, line in lines(location):
        row_bytes[0] += len(line)
        if row_bytes[0] > MAX_LINE_BYTES:
            raise ManifestError(f"{location}, line {number}: the row {TOO_LONG}")
        if b"\0" in line:
            raise ManifestError(f"{location}, line {number}: it holds a NUL byte")
        try:
            yield line.decode()
        except UnicodeDecodeError as problem:
            raise ManifestError(f"{location}, line {number}: it is not UTF-8") from problem


def _table(location: FileLocation, delimiter: str) -> Iterator[list[str]]:
    """The header, then the rows, each with its line number as text in front."""
    csv.field_size_limit(MAX_LINE_BYTES)  # the csv module has this setting per process only
    row_bytes = [0]
    reader = csv.reader(_text_lines(location, row_bytes), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if not header:
            raise ManifestError(f"{location} is empty", hint="the first line names the columns")
        if len(set(header)) < len(header):
            raise ManifestError(f"{location}, line 1: it names a column twice")
        yield header
        row_bytes[0] = 0
        for cells in reader:
            row_bytes[0] = 0
            if cells and len(cells) != len(header):
                message = f"it has {len(cells)} columns, and the first line {len(header)}"
                raise ManifestError(f"{location}, line {reader.line_num}: {message}")
            if cells:
                yield [str(reader.line_num), *cells]
    except csv.Error as problem:
        raise ManifestError(f"{location}, line {reader.line_num}: {problem}") from problem


CSV = ManifestReader(partial(rows, delimiter=","), partial(columns, delimiter=","))
TSV = ManifestReader(partial(rows, delimiter="\t"), partial(columns, delimiter="\t"))
