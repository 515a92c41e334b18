"""Exports CSV with every column of the rows: lists as JSON, formulas escaped."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgcli.results.exports.entry import ExportEntry, ExportFormat, ExportSettings
from pgcli.rows import json_text

#: A spreadsheet evaluates a text that starts with one of these signs, also in full width, after
#: blanks and characters that it does not show.
_FORMULA = re.compile(
    r"[\t\r]|[\s\x00-\x1f\x7f-\xa0\xad\u180e\u200b-\u200f\u2060-\u206f\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]"
)


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
    return f"'{text}" if not is_raw and _FORMULA.match(text) else text


CSV = ExportFormat(write, options=frozenset({"csv_raw"}))
