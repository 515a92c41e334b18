"""Exports Parquet with every column of the rows, typed as a run writes them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pgcli.output.result_file import row_tables
from pgcli.rows import RowSchema, json_text
from pgcli.views.exports.entry import ExportEntry, ExportFormat, ExportSettings, Row


def write(target: Path, entries: Iterable[ExportEntry], options: ExportSettings) -> None:
    """Write the file. Rows are first written to a temporary file, for the types of their columns
    to be known.
    """
    from pgcli.output.parquet import write_parquet  # imports pyarrow
    from pgcli.output.schema import EMBEDDING, embedding_dim_of

    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=target.parent) as pending:
        for entry in entries:
            for row in entry.rows:
                pending.write(json_text(dict(row)) + "\n")
                options.counts.boxes += len(row["boxes"])
            options.counts.images += 1

        def rows() -> Iterator[Row]:
            pending.seek(0)
            return map(json.loads, pending)

        schema = RowSchema.of(options.columns)
        dim = embedding_dim_of(rows()) if EMBEDDING in schema.columns else None
        with target.open("xb") as file:
            write_parquet(file, lambda: row_tables(rows(), schema, dim))


PARQUET = ExportFormat(write)
