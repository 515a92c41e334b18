"""Standard input as a source: a path or a JSON object per line, NUL-separated names, an image."""

from __future__ import annotations

import codecs
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs.embedded import IMAGE_BYTES
from pgcli.inputs.file_table import BYTES, LINE, FileRecord
from pgcli.inputs.lines import LINE_TOO_LONG, MAX_LINE_BYTES, parse_line
from pgcli.inputs.options import (
    ALL,
    ReadOptions,
    named_columns,
)
from pgcli.inputs.paths import ImageLocation, display_name, locate_anywhere, rebased
from pgcli.inputs.readers import ManifestRow
from pgcli.inputs.rows import RowChecker, row_id, row_to_item
from pgcli.records import MAX_IMAGE_BYTES, Fault, Item
from pgcli.stores.urls import url_scheme
from pgcli.text import LFS_HEAD_BYTES, LFS_HINT, LFS_MESSAGE, is_lfs_pointer

NAME = "standard input"
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
            raise ManifestError(f"{NAME} {LFS_MESSAGE}", hint=LFS_HINT)
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
            return ManifestRow(NAME, {options.image_column: line}, fault)
        position = f"{NAME}, line {(record.numbers or (0,))[0]}"
        if line.startswith(b"{") and not options.null_separated:
            try:
                return ManifestRow(position, parse_line(line))
            except ValueError as problem:
                if b"\0" in line or not self._exists(line):  # a path may begin with a brace
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

    def _exists(self, line: bytes) -> bool:
        path = os.path.join(self._options.folder, os.fsdecode(line))  # noqa: PTH118
        return os.path.lexists(path)

    def _locate(self, path: str) -> ImageLocation:
        allow_urls, base = self._options.url_reader is not None, self._options.folder
        return locate_anywhere(path, allow_urls=allow_urls, base=base)


def read_chunks(file: Any) -> Iterator[bytes]:
    """The bytes of a raw file as they arrive."""
    while (chunk := file.read(CHUNK_BYTES)) != b"":
        if chunk is None:  # the pipe is non-blocking and empty
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
            raise ManifestError(f"{NAME}: a line {LINE_TOO_LONG}")
    yield content(b"".join(begun))


def without_surroundings(line: bytes) -> bytes:
    """The line without byte order marks at its start and a carriage return at its end."""
    while line.startswith(codecs.BOM_UTF8):
        line = line.removeprefix(codecs.BOM_UTF8)
    return line.removesuffix(b"\r")
