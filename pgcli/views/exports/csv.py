"""CSV with every column of the rows: lists as JSON, and no text that a spreadsheet runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgcli.rows import json_text
from pgcli.views.exports.entry import Entry, Format, Wanted

#: A spreadsheet computes a text that begins with one of these.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Write the file, a line for each row."""
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)  # lines end in \r\n, by which texts with either are quoted
        writer.writerow(cell(name, is_raw=wanted.is_raw) for name in wanted.columns)
        for entry in entries:
            for row in entry.rows:
                cells = (cell(row.get(name), is_raw=wanted.is_raw) for name in wanted.columns)
                writer.writerow(cells)
                wanted.tally.boxes += len(row["boxes"])
            wanted.tally.pictures += 1


def cell(value: Any, *, is_raw: bool) -> Any:
    """The value as a cell; with an apostrophe before a text that would be a formula."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = json_text(value) if isinstance(value, list | dict) else str(value)
    return f"'{text}" if not is_raw and text.startswith(FORMULA) else text


CSV = Format(write, takes=frozenset({"csv_raw"}))
