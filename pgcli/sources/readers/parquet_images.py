"""The column of a Parquet file that holds the bytes of images."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any, BinaryIO

import pyarrow as pa

from pgcli.records import NOT_READ
from pgcli.sources.readers.parquet_batches import MAX_BATCH_BYTES, check_sizes
from pgcli.sources.readers.parquet_cells import (
    LARGE_CELL,
    MAX_CELL_BYTES,
    Cell,
    CellReader,
    can_read,
)
from pgcli.sources.readers.parquet_pages import Page, read_pages
from pgcli.sources.source_part import RowSlice

#: What an image column of the `datasets` library has.
PARTS = {"bytes", "path"}
BATCH_IMAGES = 16


def leaves_of(schema: Any, name: str) -> list[tuple[int, Any]]:
    """The columns of the Parquet schema below a column of the table, with their numbers."""
    leaves = enumerate(schema.column(number) for number in range(len(schema)))
    return [
        (n, leaf) for n, leaf in leaves if leaf.path == name or leaf.path.startswith(f"{name}.")
    ]


def image_leaf(file: Any, name: str) -> tuple[int, Any] | None:
    """The column of the Parquet schema that holds the images' bytes; None if there is none."""
    if name not in file.schema_arrow.names:
        return None
    type_ = file.schema_arrow.field(name).type
    leaves = leaves_of(file.schema, name)
    if pa.types.is_struct(type_) and {field.name for field in type_} <= PARTS:
        leaves = [(n, leaf) for n, leaf in leaves if leaf.path == f"{name}.bytes"]
    if len(leaves) != 1 or leaves[0][1].max_repetition_level:
        return None
    is_binary = leaves[0][1].physical_type == "BYTE_ARRAY"
    return leaves[0] if is_binary and leaves[0][1].logical_type.type == "NONE" else None


class ImageColumn:
    """Reads the images of some rows of a row group."""

    def __init__(self, file: Any, pages: BinaryIO, leaf: tuple[int, Any]):
        self._file, self._pages_file, (self._number, self._leaf) = file, pages, leaf

    def cells(self, group: int, start: int, part: RowSlice) -> Iterator[Cell]:
        """The images of a part of a row group; `start` is the row of the file that it begins with.

        An image that is not needed is NOT_READ. Whether it is null is known from the file's
        statistics: without them it is read all the same.
        """
        column = self._file.metadata.row_group(group).column(self._number)
        skips = self._leaf.max_definition_level == 0 or has_no_nulls(column)

        def is_wanted(row: int) -> bool:
            return not skips or part.needs_image(start + row)

        rows = range(part.start - start, part.stop - start)
        if not any(map(is_wanted, rows)):
            yield from repeat(NOT_READ, len(rows))
            return
        pages = list(read_pages(self._pages_file, column))
        if can_read(pages, column.compression):
            level = self._leaf.max_definition_level
            reader = CellReader(self._pages_file, pages, column.compression, level)
            yield from reader.cells(rows.start, rows.stop, is_wanted)
        else:
            yield from self._read_by_arrow(group, rows.start, rows.stop, pages)

    def _read_by_arrow(
        self, group: int, first: int, stop: int, pages: list[Page]
    ) -> Iterator[Cell]:
        """The images of a column in another encoding, which Arrow reads from its start."""
        check_sizes(pages, self._leaf)
        is_small = max(page.unpacked for page in pages) * BATCH_IMAGES <= MAX_BATCH_BYTES
        batches = self._file.iter_batches(
            BATCH_IMAGES if is_small else 1, row_groups=[group], columns=[self._leaf.path]
        )
        row = 0
        for batch in batches:
            cells = batch.column(0)
            while pa.types.is_struct(cells.type):
                cells = cells.flatten()[0]
            for cell in cells:
                if row >= stop:
                    return
                if row >= first:
                    yield cell_value(cell)
                row += 1


def cell_value(cell: Any) -> Cell:
    """The bytes of an Arrow value."""
    buffer = cell.as_buffer()
    return LARGE_CELL if buffer is not None and buffer.size > MAX_CELL_BYTES else cell.as_py()


def has_no_nulls(column: Any) -> bool:
    """Whether the file says that a column chunk has no nulls."""
    statistics = column.statistics if column.is_stats_set else None
    return statistics is not None and statistics.has_null_count and statistics.null_count == 0
