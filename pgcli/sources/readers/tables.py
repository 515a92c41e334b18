"""CSV and TSV: the first line names the columns."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from functools import partial

from pgcli.errors import ManifestError
from pgcli.sources.manifest_file import Where
from pgcli.sources.readers.lines import LONGEST_LINE, TOO_LONG, lines
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow


def columns(manifest: Manifest, *, delimiter: str) -> tuple[str, ...]:
    """Those of the first line. Raises ManifestError."""
    return tuple(next(_table(manifest.where, delimiter)))


def rows(manifest: Manifest, wanted: Collection[str], *, delimiter: str) -> Iterator[ManifestRow]:
    """A row for each that is not empty, which may go over several lines. Raises ManifestError."""
    table = _table(manifest.where, delimiter)
    header = next(table)
    for number, *cells in table:
        yield ManifestRow(f"line {number}", dict(zip(header, cells, strict=True)))


def _text_lines(path: Where, row: list[int]) -> Iterator[str]:
    """Decoded lines; `row` counts the bytes of those that a row has, which may go over many."""
    for number, line in lines(path):
        row[0] += len(line)
        if row[0] > LONGEST_LINE:
            raise ManifestError(f"{path}, line {number}: the row {TOO_LONG}")
        if b"\0" in line:
            raise ManifestError(f"{path}, line {number}: it holds a NUL byte")
        try:
            yield line.decode()
        except UnicodeDecodeError as problem:
            raise ManifestError(f"{path}, line {number}: it is not UTF-8") from problem


def _table(path: Where, delimiter: str) -> Iterator[list[str]]:
    """The header of a CSV or TSV file, then its rows, each led by its line number as text."""
    csv.field_size_limit(LONGEST_LINE)  # a setting of the process: the csv module has no other
    row = [0]
    reader = csv.reader(_text_lines(path, row), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if not header:
            raise ManifestError(f"{path} is empty", hint="the first line names the columns")
        if len(set(header)) < len(header):
            raise ManifestError(f"{path}, line 1: it names a column twice")
        yield header
        row[0] = 0
        for cells in reader:
            row[0] = 0
            if cells and len(cells) != len(header):
                message = f"it has {len(cells)} columns, and the first line {len(header)}"
                raise ManifestError(f"{path}, line {reader.line_num}: {message}")
            if cells:
                yield [str(reader.line_num), *cells]
    except csv.Error as problem:
        raise ManifestError(f"{path}, line {reader.line_num}: {problem}") from problem


CSV = ManifestReader(partial(rows, delimiter=","), partial(columns, delimiter=","))
TSV = ManifestReader(partial(rows, delimiter="\t"), partial(columns, delimiter="\t"))
