"""Reads JSON lines, CSV and TSV: tables of lines, each of bounded length."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

from pgcli.errors import ManifestError
from pgcli.inputs.readers import (
    InputFile,
    ManifestReader,
    ManifestRow,
    Mark,
    Wanted,
    error_text,
)
from pgcli.printable import MAX_DEPTH, is_deep

#: JSON takes up to fifty times its bytes in memory.
MAX_LINE_BYTES = 16 * 2**20
TOO_LONG = f"is longer than {MAX_LINE_BYTES >> 20} MiB"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def raw_lines(file: InputFile, mark: Mark) -> Iterator[tuple[int, bytes]]:
    """The lines from a mark on, each with its number, a byte order mark as part of the first.

    Raises ManifestError.
    """
    number, name, left = mark.number, file.name, file.size - mark.offset
    try:
        with file.open() as opened:
            opened.seek(mark.offset)
            while line := opened.readline(min(MAX_LINE_BYTES + 1, left)):
                number += 1
                left -= len(line)
                if number == 1 and line.startswith(_UTF16):
                    hint = "convert it: iconv -f UTF-16 -t UTF-8"
                    raise ManifestError(f"{name} is UTF-16, not UTF-8", hint=hint)
                if len(line) > MAX_LINE_BYTES:
                    raise ManifestError(f"{name}, line {number}: it {TOO_LONG}")
                yield number, line
    except OSError as problem:
        raise ManifestError(f"{name} cannot be read: {error_text(problem)}") from problem


def lines(file: InputFile, mark: Mark) -> Iterator[tuple[Mark, bytes]]:
    """The lines from a mark on that are not blank, each with its mark, without a byte order mark.

    Raises ManifestError.
    """
    offset = mark.offset
    for number, line in raw_lines(file, mark):
        begin, offset = offset, offset + len(line)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.isspace() and line:
            yield Mark(begin, number - 1), line


def json_rows(file: InputFile, wanted: Wanted) -> Iterator[tuple[Mark, ManifestRow]]:
    """A row for each line that is not blank. Raises ManifestError."""
    for mark, line in lines(file, wanted.mark):
        position = f"{file.name}, line {mark.number + 1}"
        try:
            yield mark, ManifestRow(position, parse_object(line))
        except ValueError as problem:
            raise ManifestError(f"{position}: {problem}") from problem


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError, with the reason, for anything else."""
    row = parse_json(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    return row


def parse_json(line: bytes, *, allow_nan: bool = False) -> Any:
    """The JSON value of one line. With `allow_nan`, NaN and infinity become null.

    Raises ValueError, with the reason, for invalid JSON, and for values that are nested too deeply
    or cannot be encoded as UTF-8.
    """
    if b"\0" in line:
        raise ValueError("it holds a NUL byte")
    try:
        row = (_WITH_NAN if allow_nan else _STRICT).decode(line.rstrip().decode())
    except UnicodeDecodeError as problem:
        raise ValueError("it is not UTF-8") from problem
    except json.JSONDecodeError as problem:
        reason = f"it is not valid JSON ({problem.msg}, column {problem.colno})"
        raise ValueError(reason) from problem
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and is_deep(row):
        raise ValueError("it is nested too deeply")
    if b"\\u" in line and _has_lone_surrogate(row):
        raise ValueError("it escapes half of a surrogate pair")
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it gives a key twice")
    return values


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _null(_: str) -> None:
    return None


#: `json.loads` makes a decoder for each call with such options, which takes longer than a row.
_STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_null)


def _has_lone_surrogate(row: Any) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


class CsvTable:
    """A table from a mark on; `number` and `offset` are where reading stands."""

    def __init__(self, file: InputFile, mark: Mark, delimiter: str):
        csv.field_size_limit(MAX_LINE_BYTES)  # the csv module has this setting per process only
        self._name, self.number, self.offset = file.name, mark.number, mark.offset
        self._row_bytes = 0  # of the current row, which may span several lines
        self._rows = csv.reader(self._lines(file, mark), delimiter=delimiter, strict=True)

    def row(self) -> list[str] | None:
        """The next row that is not empty; None at the end. Raises ManifestError."""
        cells: list[str] | None = []
        while cells == []:
            self._row_bytes = 0
            try:
                cells = next(self._rows, None)
            except csv.Error as problem:
                raise ManifestError(f"{self._name}, line {self.number}: {problem}") from problem
        return cells

    def _lines(self, file: InputFile, mark: Mark) -> Iterator[str]:
        """Decoded lines, each counted as it is taken."""
        for self.number, line in raw_lines(file, mark):
            self.offset += len(line)
            self._row_bytes += len(line)
            place = f"{self._name}, line {self.number}"
            if self._row_bytes > MAX_LINE_BYTES:
                raise ManifestError(f"{place}: the row {TOO_LONG}")
            if b"\0" in line:
                raise ManifestError(f"{place}: it holds a NUL byte")
            try:
                yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError as problem:
                raise ManifestError(f"{place}: it is not UTF-8") from problem


def csv_columns(file: InputFile, *, delimiter: str) -> tuple[str, ...]:
    """The columns that the first line names. Raises ManifestError."""
    header = CsvTable(file, Mark(), delimiter).row()
    if header is None:
        raise ManifestError(f"{file.name} has no rows", hint="the first line names the columns")
    if len(set(header)) < len(header):
        raise ManifestError(f"{file.name}, line 1: it names a column twice")
    return tuple(header)


def csv_rows(
    file: InputFile, wanted: Wanted, *, delimiter: str
) -> Iterator[tuple[Mark, ManifestRow]]:
    """A row for each that is not empty; one may span several lines. Raises ManifestError."""
    header = csv_columns(file, delimiter=delimiter)
    table = CsvTable(file, wanted.mark, delimiter)
    if wanted.mark == Mark():
        table.row()
    while True:
        mark = Mark(table.offset, table.number)
        cells = table.row()
        if cells is None:
            return
        position = f"{file.name}, line {table.number}"
        if len(cells) != len(header):
            message = f"it has {len(cells)} columns, and the first line {len(header)}"
            raise ManifestError(f"{position}: {message}")
        yield mark, ManifestRow(position, dict(zip(header, cells, strict=True)))


def csv_reader(delimiter: str) -> ManifestReader:
    """The reader of tables with this delimiter."""
    return ManifestReader(
        partial(csv_rows, delimiter=delimiter),
        partial(csv_columns, delimiter=delimiter),
        grows=True,
    )


JSON_LINES = ManifestReader(json_rows, grows=True)
CSV, TSV = csv_reader(","), csv_reader("\t")
