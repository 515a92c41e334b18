"""Reads lines, each of bounded length: JSON lines, CSV and TSV files, and standard input.

Standard input has a path or a JSON object per line, names that NUL separates, or one image.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import select
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs import tables
from pgcli.inputs.file_table import BYTES, LINE, FileRecord
from pgcli.inputs.options import (
    ALL,
    START,
    ManifestRow,
    Mark,
    ReadOptions,
    error_text,
    named_columns,
)
from pgcli.inputs.paths import ImageLocation, display_name, locate_below, rebased
from pgcli.inputs.rows import IMAGE_BYTES, RowChecker, row_id, row_to_item
from pgcli.inputs.tables import Table
from pgcli.records import MAX_IMAGE_BYTES, Fault, Item
from pgcli.stores.urls import url_scheme
from pgcli.text import (
    LFS_HEAD_BYTES,
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
            raise ManifestError(
                f"{self.name}, line 1: the column {name!r} occurs twice", hint="rename one of them"
            )
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


def parse_json(line: bytes) -> Any:
    """The JSON value of one line; NaN and infinity, which Python writes, become null.

    Raises ValueError, with the reason, for invalid JSON, and for values that are nested too deeply
    or cannot be encoded as UTF-8.
    """
    if b"\0" in line:
        raise ValueError("it contains a NUL byte")
    try:
        row = _DECODER.decode(decode_text(line.rstrip()))
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
    if b"\\u" in line:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair") from None
    return row


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The JSON object of the pairs. Raises ValueError for a key that occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it has a duplicate key")
    return values


#: `json.loads` makes a decoder for each call with such options, which takes longer than a row.
_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=lambda _: None)


STDIN_NAME = "standard input"
CHUNK_BYTES = 64 * 2**10
_TOO_LARGE = Fault("too_large", f"The image is larger than {MAX_IMAGE_BYTES} bytes.")


class Stdin:
    """Standard input: its lines, or the bytes of one image, and their items.

    A line is a row as in a manifest, or a plain path. Raises UsageError for options that standard
    input cannot have.
    """

    def __init__(self, options: ReadOptions):
        self._options, self._kept = options, named_columns(options.keep)
        self._checker = RowChecker(options, self._kept)
        if ALL in options.keep:
            raise UsageError(
                "<--keep=> '*' does not work with standard input: each line has its own columns",
                hint="name them: <--keep a,b>",
            )

    def read(self, source: int) -> Iterator[FileRecord]:
        """A record for each non-blank line as it arrives, or one for the image.

        Raises ManifestError for a line that is too long.
        """
        # the raw file: a buffered read waits for more than one line, and holds a lock that a
        # thread still waiting for input would keep at exit
        chunks = read_chunks(getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
        first = next(chunks, b"")
        while 0 < len(first) < LFS_HEAD_BYTES and b"\n" not in first:
            if not (more := next(chunks, b"")):
                break
            first += more
        if is_lfs_pointer(first):
            raise ManifestError(f"{STDIN_NAME} {LFS_MESSAGE}", hint=LFS_HINT)
        if IMAGE_BYTES.match(first) and not self._options.null_separated:
            size, pieces = 0, []
            for piece in chain([first], chunks):
                size += len(piece)
                pieces.append(piece if size <= MAX_IMAGE_BYTES else b"")
            data = b"" if size > MAX_IMAGE_BYTES else b"".join(pieces)
            yield FileRecord(source, 0, BYTES, data)
            return
        separator = b"\0" if self._options.null_separated else b"\n"
        lines = split_lines(chain([first], chunks), separator)
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield FileRecord(source, 0, LINE, self._rebased(line), numbers=(number,))

    def item(self, record: FileRecord, index: int) -> Item:
        """The item of a line or of the image. Raises ManifestError and UsageError."""
        options, row = self._options, self._row(record)
        self._checker.check(row)
        return row_to_item(row, index, options, locate=self._locate, manifest="-", kept=self._kept)

    def ids(self, record: FileRecord) -> Iterator[tuple[str, str]]:
        """The id in a line, if any, with its position."""
        row = self._row(record)
        name = row_id(row, self._options)
        if name is not None:
            yield name, row.position

    def _row(self, record: FileRecord) -> ManifestRow:
        """The row of a line: a JSON object, or a row with only an image."""
        options, line = self._options, record.name
        if record.kind == BYTES:
            fault = None if line else _TOO_LARGE
            return ManifestRow(STDIN_NAME, {options.image_column: line}, fault)
        position = f"{STDIN_NAME}, line {(record.numbers or (0,))[0]}"
        if line.startswith(b"{") and not options.null_separated:
            try:
                return ManifestRow(position, parse_line(line))
            except ValueError as problem:
                path = os.path.join(options.folder, os.fsdecode(line))  # noqa: PTH118
                if b"\0" in line or not os.path.lexists(path):  # a path may begin with a brace
                    raise ManifestError(f"{position}: {problem}") from problem
        if b"\0" in line:
            raise ManifestError(
                f"{position}: it contains a NUL byte",
                hint="<--null> reads names that NUL separates, as `find -print0` writes them",
            )
        path = os.fsdecode(line)
        name = display_name(path)  # without undecodable bytes, and without credentials
        image = path if url_scheme(path) else name
        return ManifestRow(position, {options.image_column: image})

    def _rebased(self, line: bytes) -> bytes:
        """The line with its path relative to the folder of the options."""
        options = self._options
        if not options.folder:
            return line
        folder, base = os.getcwd(), options.folder  # noqa: PTH109
        if line.startswith(b"{") and not options.null_separated:
            with suppress(ValueError):
                row = parse_line(line)
                if isinstance(path := row.get(options.image_column), str):
                    row[options.image_column] = rebased(path, folder, base)
                return json.dumps(row, ensure_ascii=False).encode()
        return os.fsencode(rebased(os.fsdecode(line), folder, base))

    def _locate(self, path: str) -> ImageLocation:
        allow_urls, base = self._options.url_reader is not None, self._options.folder
        return locate_below("", path, None, allow_urls=allow_urls, base=base)


def read_chunks(file: Any) -> Iterator[bytes]:
    """The bytes of a raw file as they arrive, also of an empty pipe that does not block."""
    while (chunk := file.read(CHUNK_BYTES)) != b"":
        if chunk is None:
            select.select([file], [], [])
        else:
            yield chunk


def split_lines(chunks: Iterator[bytes], separator: bytes) -> Iterator[bytes]:
    """The lines without their ends and byte order marks, or the names that end in NUL."""
    content = without_surroundings if separator == b"\n" else bytes
    begun: list[bytes] = []
    for chunk in chunks:
        *lines, tail = chunk.split(separator)
        for line in lines:
            yield content(b"".join([*begun, line]))
            begun = []
        begun.append(tail)
        if sum(map(len, begun)) > MAX_LINE_BYTES:
            raise ManifestError(f"{STDIN_NAME}: a line {LINE_TOO_LONG}")
    yield content(b"".join(begun))


def without_surroundings(line: bytes) -> bytes:
    """The line without byte order marks at its start and a carriage return at its end."""
    while line.startswith(codecs.BOM_UTF8):
        line = line.removeprefix(codecs.BOM_UTF8)
    return line.removesuffix(b"\r")
