"""Parquet files, by their row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow
from pyarrow import parquet

from pgcli.output.tables import MAX_GROUP_BYTES, TableFormat

#: Rows that are read at a time; no row group written here is larger.
BATCH_BYTES = 2 * MAX_GROUP_BYTES


def writer(file: BinaryIO, schema: pyarrow.Schema) -> parquet.ParquetWriter:
    """A writer of tables under the schema, each as a row group.

    Vectors are not compressed: that saves 7 percent, and takes longer to read.
    """
    vectors = {
        name
        for name, kind in zip(schema.names, schema.types, strict=True)
        if pyarrow.types.is_fixed_size_list(kind)
    }
    if not vectors:
        return parquet.ParquetWriter(file, schema, compression="zstd")
    others = [name for name in schema.names if name not in vectors]
    compression = dict.fromkeys(others, "zstd")
    return parquet.ParquetWriter(file, schema, compression=compression, use_dictionary=others)


def parquet_batches(
    file: BinaryIO, columns: Sequence[str] | None, rows: int
) -> Iterator[pyarrow.RecordBatch]:
    """The row groups, in batches of at most so many rows, and fewer if rows are large."""
    # by default, pyarrow reads whole row groups instead of pages
    with parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20) as opened:
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            fitting = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            limit = max(1, min(rows, group.num_rows, fitting))
            yield from opened.iter_batches(limit, [number], columns, use_threads=False)


PARQUET = TableFormat(writer, parquet.read_schema, parquet_batches)
