"""Rows as lines of JSON, written and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pgcli.printable import MAX_DEPTH, is_deep
from pgcli.records import Answer
from pgcli.rows import RowSchema, json_text
from pgcli.stores.files import open_regular

#: Levels of nesting in a line: those of a manifest's values, and the row around them.
MAX_LEVELS = 2 * MAX_DEPTH
#: Of a row with kept columns of 64 MiB as base64, and more.
MAX_LINE_BYTES = 128 * 2**20


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


def read_lines(file: Path) -> Iterator[bytes]:
    """The file's lines with their newlines, which the last line may lack.

    Raises ValueError for a line that is longer than any row.
    """
    with open_regular(file) as stream:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"a line is longer than {MAX_LINE_BYTES >> 20} MiB")
            yield line


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The file's rows up to the first line that is not a row."""
    for line in read_lines(file):
        row = parse_row(line)
        if row is None:
            return
        yield row
