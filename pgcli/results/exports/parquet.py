"""Exports Parquet with every column of the rows, typed as a run writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pgcli.output.result_file import row_tables
from pgcli.results.exports.entry import ExportEntry, ExportFormat, ExportSettings, Row
from pgcli.rows import RowSchema


def write(target: Path, entries: Iterable[ExportEntry], options: ExportSettings) -> None:
    """Write the file. Rows are first written to a temporary file, for the types of their columns
    to be known.
    """
    from pgcli.output.parquet import spool_tables, write_parquet  # imports pyarrow

    def rows() -> Iterator[Row]:
        for entry in entries:
            options.counts.images += 1
            for row in entry.rows:
                options.counts.boxes += len(row["boxes"])
                yield row

    with tempfile.TemporaryFile(dir=target.parent) as spool:
        tables = spool_tables(row_tables(rows(), RowSchema.of(options.columns)), spool)
        with target.open("xb") as file:
            write_parquet(file, tables)


PARQUET = ExportFormat(write, keeps_types=True)
