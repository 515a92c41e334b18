"""Splits standard input into lines as they arrive, each of bounded length."""

from __future__ import annotations

import codecs
import select
from collections.abc import Iterator
from typing import Any

from pgcli.errors import ManifestError
from pgcli.sources.readers.lines import MAX_LINE_BYTES, TOO_LONG

CHUNK_BYTES = 64 * 2**10


def stdin_lines(file: Any, name: str, *, null_separated: bool) -> Iterator[bytes]:
    """The lines or NUL-separated names of a raw file, without line ends and byte order mark.

    Raises ManifestError for a line that is too long; `name` is the file's in messages.
    """
    separator = b"\0" if null_separated else b"\n"
    line_end = b"" if null_separated else b"\r"
    mark = codecs.BOM_UTF8  # of the first line only
    begun: list[bytes] = []
    for chunk in _chunks(file):
        *lines, rest = chunk.split(separator)
        for line in lines:
            yield b"".join([*begun, line]).removeprefix(mark).removesuffix(line_end)
            begun, mark = [], b""
        begun.append(rest)
        if sum(map(len, begun)) > MAX_LINE_BYTES:
            raise ManifestError(f"{name}: a line {TOO_LONG}")
    yield b"".join(begun).removeprefix(mark).removesuffix(line_end)


def _chunks(file: Any) -> Iterator[bytes]:
    while (chunk := file.read(CHUNK_BYTES)) != b"":
        if chunk is None:  # the pipe is non-blocking and empty
            select.select([file], [], [])
        else:
            yield chunk
