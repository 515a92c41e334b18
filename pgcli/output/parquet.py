"""Parquet files, by their row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow
from pyarrow import parquet

from pgcli.output.tables import TableFormat


def writer(file: BinaryIO, schema: pyarrow.Schema) -> parquet.ParquetWriter:
    """What writes tables under the schema, each as a row group."""
    return parquet.ParquetWriter(file, schema, compression="zstd")


def batches(
    file: BinaryIO, columns: Sequence[str] | None, rows: int
) -> Iterator[pyarrow.RecordBatch]:
    """The row groups, in batches of at most so many rows."""
    with parquet.ParquetFile(file) as opened:
        for group in range(opened.num_row_groups):
            most = min(rows, max(1, opened.metadata.row_group(group).num_rows))
            yield from opened.iter_batches(most, [group], columns, use_threads=False)


PARQUET = TableFormat(writer, parquet.read_schema, batches)
