"""Exports Parquet with every column of the rows, typed as a run writes them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pgcli.rows import RowSchema, json_text
from pgcli.sinks.result_file import write_table
from pgcli.views.exports.entry import ExportEntry, ExportFormat, ExportSettings, Row


def write(target: Path, entries: Iterable[ExportEntry], options: ExportSettings) -> None:
    """Write the file. Rows are first written to a temporary file, for the types of their columns
    to be known.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=target.parent) as pending:
        for entry in entries:
            for row in entry.rows:
                pending.write(json_text(dict(row)) + "\n")
                options.counts.boxes += len(row["boxes"])
            options.counts.images += 1

        def rows() -> Iterator[Row]:
            pending.seek(0)
            return map(json.loads, pending)

        write_table(target, rows, RowSchema.of(options.columns))


PARQUET = ExportFormat(write)
