"""Exports CSV with every column of the rows: lists as JSON, formulas escaped."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgcli.rows import json_text
from pgcli.views.exports.entry import ExportEntry, ExportFormat, ExportSettings

#: A spreadsheet evaluates a text that starts with one of these.
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


def write(target: Path, entries: Iterable[ExportEntry], options: ExportSettings) -> None:
    """Write the file, a line for each row."""
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)  # lines end in \r\n, so that texts with either are quoted
        writer.writerow(cell(name, is_raw=options.csv_raw) for name in options.columns)
        for entry in entries:
            for row in entry.rows:
                cells = (cell(row.get(name), is_raw=options.csv_raw) for name in options.columns)
                writer.writerow(cells)
                options.counts.boxes += len(row["boxes"])
            options.counts.images += 1


def cell(value: Any, *, is_raw: bool) -> Any:
    """The value as a cell; unless `is_raw`, an apostrophe precedes a text that is a formula."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = json_text(value) if isinstance(value, list | dict) else str(value)
    return f"'{text}" if not is_raw and text.startswith(FORMULA_PREFIXES) else text


CSV = ExportFormat(write, options=frozenset({"csv_raw"}))
