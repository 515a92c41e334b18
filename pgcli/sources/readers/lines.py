"""Lines of a file, none longer than memory bears, and the JSON object that one may be."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, NoReturn

from pgcli.errors import ManifestError
from pgcli.printable import MAX_DEPTH, is_deep
from pgcli.sources.manifest_file import Where, opened, why

#: What JSON spells takes up to fifty times its bytes in memory.
LONGEST_LINE = 16 * 2**20
TOO_LONG = f"is longer than {LONGEST_LINE >> 20} MiB"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError, saying why, for anything else."""
    row = spelled(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    return row


def spelled(line: bytes, *, takes_nan: bool = False) -> Any:
    """What the line spells in JSON; NaN and infinity are null where they are taken.

    Raises ValueError, saying why, for what is no JSON, and for what memory or UTF-8 cannot bear.
    """
    if b"\0" in line:
        raise ValueError("it holds a NUL byte")
    constant = _null if takes_nan else _refused
    try:
        row = json.loads(line.rstrip().decode(), object_pairs_hook=_object, parse_constant=constant)
    except UnicodeDecodeError as problem:
        raise ValueError("it is not UTF-8") from problem
    except json.JSONDecodeError as problem:
        raise ValueError(
            f"it is not valid JSON ({problem.msg}, column {problem.colno})"
        ) from problem
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


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _null(_: str) -> None:
    return None


def _has_lone_surrogate(row: Any) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def lines(path: Where) -> Iterator[tuple[int, bytes]]:
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
