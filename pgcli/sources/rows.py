"""The rows of a manifest file, read as a stream: JSON lines, CSV, TSV or Parquet."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, NoReturn

from pgcli.errors import ManifestError
from pgcli.records import Fault
from pgcli.sources.opening import Where, kind, opened, why

#: What JSON spells takes up to fifty times its bytes in memory.
LONGEST_LINE = 16 * 2**20
#: A row goes through functions that call themselves for each level, here and where it is written.
MOST_LEVELS = 64
TOO_LONG = f"is longer than {LONGEST_LINE >> 20} MiB"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Row(NamedTuple):
    """One row, and where it stands for messages: `line 3`, `row 3`; what its picture lacks."""

    place: str
    values: Mapping[str, Any]
    fault: Fault | None = None


def columns(path: Where) -> tuple[str, ...] | None:
    """The columns that the file's head names; None for JSON lines, whose rows name their own."""
    match kind(path):
        case ".parquet":
            from pgcli.sources import parquet  # pyarrow is slow to import

            return parquet.column_names(path)
        case ".csv" | ".tsv":
            return tuple(next(_table(path)))
    return None


def rows(path: Where, wanted: Collection[str]) -> Iterator[Row]:
    """The file's rows, with the wanted columns at least. Raises ManifestError, naming the line."""
    match kind(path):
        case ".parquet":
            from pgcli.sources import parquet

            return parquet.rows(path, wanted)
        case ".csv" | ".tsv":
            return _table_rows(path)
    return _json_rows(path)


def parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError, saying why, for anything else."""
    if b"\0" in line:
        raise ValueError("it holds a NUL byte")
    try:
        row = json.loads(line.rstrip().decode(), object_pairs_hook=_object, parse_constant=_refused)
    except UnicodeDecodeError as problem:
        raise ValueError("it is not UTF-8") from problem
    except json.JSONDecodeError as problem:
        raise ValueError(
            f"it is not valid JSON ({problem.msg}, column {problem.colno})"
        ) from problem
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    if line.count(b"[") + line.count(b"{") > MOST_LEVELS and _is_deep(row):
        raise ValueError("it is nested too deeply")
    if b"\\u" in line and _has_lone_surrogate(row):
        raise ValueError("it escapes half of a surrogate pair")
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it gives a key twice")
    return values


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _is_deep(row: dict[str, Any]) -> bool:
    level: list[Any] = [row]
    for _ in range(MOST_LEVELS):
        dicts = chain.from_iterable(one.values() for one in level if isinstance(one, dict))
        lists = chain.from_iterable(one for one in level if isinstance(one, list))
        level = [one for one in chain(dicts, lists) if isinstance(one, dict | list)]
    return bool(level)


def _has_lone_surrogate(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _json_rows(path: Where) -> Iterator[Row]:
    for number, line in _lines(path):
        if line.strip():
            try:
                yield Row(f"line {number}", parsed(line))
            except ValueError as problem:
                raise ManifestError(f"{path}, line {number}: {problem}") from problem


def _lines(path: Where) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, without a byte order mark, none longer than the limit held in memory."""
    try:
        with opened(path) as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if number == 1 and line.startswith(_UTF16):
                    hint = "convert it: iconv -f UTF-16 -t UTF-8"
                    raise ManifestError(f"{path} is UTF-16, not UTF-8", hint=hint)
                if len(line) > LONGEST_LINE:
                    raise ManifestError(f"{path}, line {number}: it {TOO_LONG}")
                yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except OSError as problem:
        raise ManifestError(f"{path} cannot be read: {why(problem)}") from problem


def _text_lines(path: Where, row: list[int]) -> Iterator[str]:
    """Decoded lines; `row` counts the bytes of those that a row has, which may go over many."""
    for number, line in _lines(path):
        row[0] += len(line)
        if row[0] > LONGEST_LINE:
            raise ManifestError(f"{path}, line {number}: the row {TOO_LONG}")
        if b"\0" in line:
            raise ManifestError(f"{path}, line {number}: it holds a NUL byte")
        try:
            yield line.decode()
        except UnicodeDecodeError as problem:
            raise ManifestError(f"{path}, line {number}: it is not UTF-8") from problem


def _table(path: Where) -> Iterator[list[str]]:
    """The header of a CSV or TSV file, then its rows, each led by its line number as text."""
    csv.field_size_limit(LONGEST_LINE)  # a setting of the process: the csv module has no other
    delimiter = "\t" if kind(path) == ".tsv" else ","
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


def _table_rows(path: Where) -> Iterator[Row]:
    table = _table(path)
    header = next(table)
    for number, *cells in table:
        yield Row(f"line {number}", dict(zip(header, cells, strict=True)))
