"""Exports tables with every column of the rows: CSV, and Parquet typed as a run writes it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.output.reader import Row
from pgcli.records import Fault
from pgcli.results.exports.rows import Export, ExportEntry, ExportFormat
from pgcli.results.sidecars import Sidecars
from pgcli.rows import RowSchema, json_text

#: A spreadsheet evaluates a text that starts with one of these signs, also in full width, after
#: whitespace and invisible characters.
_FORMULA = re.compile(
    r"[\t\r]|[\s\x00-\x1f\x7f-\xa0\xad\u180e\u200b-\u200f\u2060-\u206f\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]"
)


def write_csv(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the file, a line for each row, with the mark by which Excel knows UTF-8."""
    names = [*export.stats.columns]
    with open(target, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)  # lines end in \r\n, so that texts with either are quoted
        writer.writerow(map(cell, names))
        for entry in entries:
            for row in entry.rows:
                writer.writerow(cell(row.get(name)) for name in names)
                export.counts.boxes += len(row["boxes"])
            export.counts.images += 1


def cell(value: Any) -> Any:
    """The value as a cell; a formula gets a leading apostrophe."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = json_text(value) if isinstance(value, list | dict) else str(value)
    return f"'{text}" if _FORMULA.match(text) else text


CSV = ExportFormat(write_csv)


def write_table(target: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Write the file."""
    from pgcli.output.parquet import PARQUET  # imports pyarrow

    def rows() -> Iterator[Row]:
        for entry in entries:
            export.counts.images += 1
            for row in entry.rows:
                export.counts.boxes += len(row["boxes"])
                yield row

    with target.open("xb") as file:
        PARQUET.write(file, rows(), RowSchema.of(export.stats.columns))


TABLE = ExportFormat(write_table, keeps_types=True)


NO_FILE = Fault("missing", "There is no image file here to put a text next to.")


def write_texts(
    target: Path, entries: Iterable[ExportEntry], export: Export, *, suffix: str
) -> None:
    """Write a text for each image below the folder, or next to the images if it is `Path()`.

    Each file is written atomically. Both have the names that `Sidecars` gives.
    """
    options, counts = export.options, export.counts
    below = None if target == Path() else str(target)
    texts = Sidecars(suffix, options.prepend, options.append, overwrite=options.overwrite)
    for entry in entries:
        row, image = entry.rows[0], entry.path if below is None else str(target / entry.name)
        # a row may name any path: texts are written only next to existing images
        if image is None or (below is None and not Path(image).is_file()):
            counts.missing.add(entry.image, NO_FILE)
        elif (name := texts.claim(image)) is None:
            counts.unnamed += 1
        else:
            if name != texts.own_name(image):
                counts.add_renamed(f"the text of {row['id']}", Path(name).name)
            texts.write(name, row["answer"], below=below)
    counts.images += texts.counts["written"]
    counts.kept += texts.counts["kept"]


def text_format(suffix: str) -> ExportFormat:
    """The format of text files with this suffix."""
    return ExportFormat(
        partial(write_texts, suffix=suffix),
        is_folder=True,
        is_merged=True,
        max_one="answers",
        unique_stems=True,
        suffixes=frozenset({suffix}),
        options=frozenset({"prepend", "append"}),
    )


TXT = text_format(".txt")
CAPTION = text_format(".caption")
