"""Rows as lines of JSON, written and read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pgcli.printable import MAX_DEPTH, is_deep
from pgcli.records import Answer
from pgcli.rows import RowSchema, json_text
from pgcli.stores.files import open_regular

READ_BYTES = 4 * 2**20
#: Levels of nesting in a line: those of a manifest's values, and the row around them.
MAX_LEVELS = 2 * MAX_DEPTH


def json_line(answer: Answer, schema: RowSchema, *, ascii_only: bool = False) -> str:
    """The row as compact JSON and a newline.

    `ascii_only` is for terminals: JSON itself does not escape DEL, C1 controls and direction marks.
    """
    return json_text(schema.row(answer), ascii_only=ascii_only) + "\n"


def parse_row(line: bytes) -> dict[str, Any] | None:
    """The row in a whole line; None for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and not is_too_deep(line, row) else None


def is_too_deep(line: bytes, value: object = None) -> bool:
    """Whether a line nests deeper than any row; `value` is what it parses to, if known."""
    if line.count(b"[") + line.count(b"{") <= MAX_LEVELS:
        return False
    try:
        return is_deep(json.loads(line) if value is None else value, MAX_LEVELS)
    except (ValueError, RecursionError) as problem:
        return isinstance(problem, RecursionError)


def read_lines(file: Path, start: int = 0) -> Iterator[bytes]:
    """The file's lines from a byte on, with their newlines, which the last line may lack."""
    with open_regular(file) as stream:
        if start <= os.fstat(stream.fileno()).st_size:
            stream.seek(start)
            yield from stream


def read_rows(file: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """The file's rows from a byte on, up to the first line that is not a row."""
    for line in read_lines(file, start):
        row = parse_row(line)
        if row is None:
            return
        yield row


class LineCount(NamedTuple):
    """The newlines in a range of bytes. `is_whole`: it exists, ends with one, and has no NUL.

    A power loss leaves NULs where bytes did not reach the disk.
    """

    lines: int
    is_whole: bool


def count_lines(descriptor: int, end: int, start: int = 0) -> LineCount:
    """Count the lines in a range of bytes of an open file, without parsing them. Raises OSError."""
    lines, last, has_nul = 0, b"\n", False
    while start < end:
        data = os.pread(descriptor, min(READ_BYTES, end - start), start)
        if not data:
            return LineCount(lines, False)
        lines, last = lines + data.count(b"\n"), data[-1:]
        has_nul = has_nul or b"\0" in data
        start += len(data)
    return LineCount(lines, last == b"\n" and not has_nul)
