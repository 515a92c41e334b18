"""Reads JSON lines, CSV and TSV: tables of lines, each of bounded length."""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from pgcli.errors import ManifestError
from pgcli.inputs import tables
from pgcli.inputs.readers import START, ManifestRow, Mark, error_text
from pgcli.inputs.tables import Table
from pgcli.text import (
    LFS_HINT,
    LFS_MESSAGE,
    MAX_DEPTH,
    count,
    decode_text,
    is_deep,
    is_lfs_pointer,
    number_reason,
)

#: JSON takes up to fifty times its bytes in memory.
MAX_LINE_BYTES = 16 * 2**20
LINE_TOO_LONG = f"is longer than {MAX_LINE_BYTES >> 20} MiB"
#: Of lines that Arrow reads at once.
MAX_ARROW_BYTES = 2 * MAX_LINE_BYTES
#: Matches numbers that may exceed 64-bit floats; Python reads these as infinity.
_LARGE_NUMBER = re.compile(rb"\d[eE]\+?\d{3}|\d{200}")
MAX_SHOWN = 40  # characters of such a number


class LineTable(Table):
    """A table of lines; lines that are appended to the file are new rows."""

    grows = True
    hint = "correct it there, or remove the row"

    def raw_lines(self, mark: Mark) -> Iterator[tuple[int, bytes]]:
        """The lines from a mark on, each with its number, byte order marks included.

        Raises ManifestError.
        """
        number, name, remaining = mark.number, self.name, self.file.size - mark.offset
        try:
            with self.file.open() as opened:
                opened.seek(mark.offset)
                while line := opened.readline(min(MAX_LINE_BYTES + 1, remaining)):
                    number += 1
                    remaining -= len(line)
                    if number == 1 and is_lfs_pointer(line):
                        raise ManifestError(f"{name} {LFS_MESSAGE}", hint=LFS_HINT)
                    if len(line) > MAX_LINE_BYTES:
                        raise self.not_a_row(number, f"it {LINE_TOO_LONG}")
                    yield number, line
        except OSError as error:
            raise ManifestError(f"{name} cannot be read: {error_text(error)}") from error

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """See `Table`. A row for each non-blank line."""
        offset = mark.offset
        for number, line in self.raw_lines(mark):
            begin, offset = offset, offset + len(line)
            if not line.replace(codecs.BOM_UTF8, b"").strip():
                continue
            position = f"{self.name}, line {number}"
            try:
                yield Mark(begin, number - 1), ManifestRow(position, self.values(line))
            except ValueError as problem:
                raise self.not_a_row(number, str(problem)) from problem

    def image_texts(self, start: int, stop: int) -> pa.Array | None:
        """See `Table`. None also for long lines."""
        offsets, last = self.record.offsets or (), -(-stop // tables.EVERY)
        mark, skip = self.mark_before(start)
        end = offsets[last] if last < len(offsets) else self.file.size
        if end - mark.offset > MAX_ARROW_BYTES:
            return None
        try:
            with self.file.open() as file:
                file.seek(mark.offset)
                lines = file.read(end - mark.offset)
            texts = pa.nulls(0) if codecs.BOM_UTF8 in lines else self.texts_in(lines)
        except (pa.ArrowException, OSError):
            return None
        rows = min(last * tables.EVERY, self.record.rows or 0) - (start - skip)
        return texts[skip : skip + stop - start] if len(texts) == rows else None

    def texts_in(self, lines: bytes) -> pa.Array:
        """The image column of some lines; empty if it is not text. Raises ArrowException."""
        return pa.nulls(0)

    def not_a_row(self, number: int, reason: str) -> ManifestError:
        """The error for a line that is not a row."""
        return ManifestError(f"{self.name}, line {number}: {reason}", hint=self.hint)

    def values(self, line: bytes) -> dict[str, Any]:
        """The columns of a line. Raises ValueError with the reason for an invalid line."""
        raise NotImplementedError


class JsonTable(LineTable):
    """A JSON object on each line."""

    hint = (
        'correct it there: each line must be a JSON object, such as {"image": "a.png"}; '
        "`pgcli import` reads annotation files"
    )

    def values(self, line: bytes) -> dict[str, Any]:
        return parse_line(line)

    def texts_in(self, lines: bytes) -> pa.Array:
        """See `LineTable`."""
        schema = pa.schema([(self.image_column, pa.string())])
        table = arrow_json.read_json(
            pa.BufferReader(lines),
            arrow_json.ReadOptions(use_threads=False, block_size=len(lines)),
            arrow_json.ParseOptions(schema, unexpected_field_behavior="ignore"),
        )
        return table.column(0).combine_chunks()


class CsvTable(LineTable):
    """CSV: the first row names the columns; cells may span several lines."""

    delimiter = ","

    def schema(self) -> pa.Schema:
        _, _, header = next(self._cells(START), (None, None, None))
        if header is None:
            raise ManifestError(
                f"{self.name} has no rows", hint="the first line must name the columns"
            )
        if (
            name := next((n for n, times in Counter(header).items() if times > 1), None)
        ) is not None:
            raise ManifestError(f"{self.name}, line 1: the column {name!r} occurs twice")
        return pa.schema([(name, pa.string()) for name in header])

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        header = self.schema().names
        for begin, position, cells in islice(self._cells(mark), mark == START, None):
            if len(cells) != len(header):
                message = (
                    f"{len(cells)} cells, but the first line names {count(len(header), 'column')}"
                )
                raise ManifestError(f"{position}: {message}")
            yield begin, ManifestRow(position, dict(zip(header, cells, strict=True)))

    def texts_in(self, lines: bytes) -> pa.Array:
        """See `LineTable`."""
        name, names, size = self.image_column, self.schema().names, len(lines)
        table = arrow_csv.read_csv(
            pa.BufferReader(lines),
            arrow_csv.ReadOptions(use_threads=False, block_size=size, column_names=names),
            arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(column_types={name: pa.string()}, include_columns=[name]),
        )
        return table.column(0).combine_chunks()

    def _cells(self, mark: Mark) -> Iterator[tuple[Mark, str, list[str]]]:
        """The non-empty rows, with mark and position. Raises ManifestError."""
        csv.field_size_limit(MAX_LINE_BYTES)  # the csv module has this setting per process only
        offset, number = mark
        row_bytes = 0

        def position() -> str:
            return f"{self.name}, line {number}"

        def lines() -> Iterator[str]:
            nonlocal offset, number, row_bytes
            for line_number, line in self.raw_lines(mark):
                decode = bytes.decode if row_bytes else decode_text  # of a row's first line
                number, offset = line_number, offset + len(line)
                row_bytes += len(line)
                if row_bytes > MAX_LINE_BYTES:
                    raise ManifestError(f"{position()}: the row {LINE_TOO_LONG}")
                if b"\0" in line:
                    raise ManifestError(f"{position()} contains a NUL byte")
                try:
                    yield decode(line)
                except UnicodeDecodeError as problem:
                    raise ManifestError(f"{position()} is not UTF-8") from problem

        rows = csv.reader(lines(), delimiter=self.delimiter, strict=True)
        while True:
            begin, row_bytes = Mark(offset, number), 0
            try:
                cells = next(rows, None)
            except csv.Error as problem:
                raise self.not_a_row(number, str(problem).partition(" - ")[0]) from problem
            if cells is None:
                return
            if cells:
                yield begin, position(), cells


class TsvTable(CsvTable):
    """CSV with tabs between cells."""

    delimiter = "\t"


def parse_line(line: bytes) -> dict[str, Any]:
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
        raise ValueError("it contains a NUL byte")
    decoder = _WITH_NAN if allow_nan else _STRICT
    if _LARGE_NUMBER.search(line):
        decoder = json.JSONDecoder(
            object_pairs_hook=unique_keys,
            parse_constant=decoder.parse_constant,
            parse_float=_finite,
        )
    try:
        row = decoder.decode(decode_text(line.rstrip()))
    except UnicodeDecodeError as problem:
        raise ValueError("it is not UTF-8") from problem
    except json.JSONDecodeError as problem:
        reason = f"it is not valid JSON ({problem.msg}, column {problem.colno})"
        raise ValueError(reason) from problem
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem
    except ValueError as problem:
        raise ValueError(number_reason(problem)) from problem
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and is_deep(row):
        raise ValueError("it is nested too deeply")
    if b"\\u" in line and _has_lone_surrogate(row):
        raise ValueError("it has half of a surrogate pair")
    return row


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The JSON object of the pairs. Raises ValueError for a key that occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it has a duplicate key")
    return values


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _null(_: str) -> None:
    return None


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"it has the number {text[:MAX_SHOWN]}, which is out of range")
    return number


#: `json.loads` makes a decoder for each call with such options, which takes longer than a row.
_STRICT = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_refuse)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_null)


def _has_lone_surrogate(row: Any) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
