"""Reads lines of bounded length, and parses the JSON object of one."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, NoReturn

from pgcli.errors import ManifestError
from pgcli.printable import MAX_DEPTH, is_deep
from pgcli.sources.manifest_file import FileLocation, error_text, open_file

#: JSON takes up to fifty times its bytes in memory.
MAX_LINE_BYTES = 16 * 2**20
TOO_LONG = f"is longer than {MAX_LINE_BYTES >> 20} MiB"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def lines(location: FileLocation) -> Iterator[tuple[int, bytes]]:
    """The numbered lines of a file, without a byte order mark. Raises ManifestError."""
    return ((number, without_mark(number, line)) for number, line in raw_lines(location))


def without_mark(number: int, line: bytes) -> bytes:
    """A numbered line without the byte order mark that the first may begin with."""
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def raw_lines(
    location: FileLocation, number: int = 0, offset: int = 0
) -> Iterator[tuple[int, bytes]]:
    """The numbered lines behind an `offset`, before which there are `number` lines.

    Raises ManifestError.
    """
    try:
        with open_file(location) as file:
            file.seek(offset)
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1 and line.startswith(_UTF16):
                    hint = "convert it: iconv -f UTF-16 -t UTF-8"
                    raise ManifestError(f"{location} is UTF-16, not UTF-8", hint=hint)
                if len(line) > MAX_LINE_BYTES:
                    raise ManifestError(f"{location}, line {number}: it {TOO_LONG}")
                yield number, line
    except OSError as problem:
        raise ManifestError(f"{location} cannot be read: {error_text(problem)}") from problem


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
    constant = _null if allow_nan else _refuse
    try:
        row = json.loads(line.rstrip().decode(), object_pairs_hook=_object, parse_constant=constant)
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


def _has_lone_surrogate(row: Any) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
