"""Reads Parquet manifests, a few rows at a time as the size of their values allows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pgcli.arrow_values import to_values
from pgcli.errors import ManifestError
from pgcli.records import Fault
from pgcli.remote import RemoteError, RemoteFile
from pgcli.sources.manifest_file import FileLocation
from pgcli.sources.readers.parquet_batches import TooLarge, batch_rows
from pgcli.sources.readers.parquet_images import ImageColumn, image_leaf, leaves_of
from pgcli.sources.readers.parquet_types import check_types
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow
from pgcli.sources.source_part import RowSlice

#: A file of a hundred bytes can state any number of rows.
MAX_ROWS = 2**32
HEADER_BLOCK = 2**16  # bytes; footers and the headers of pages are short; pages are read as a whole

_BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError, MemoryError)


def columns(manifest: Manifest) -> tuple[str, ...]:
    """The columns that the file's footer names, each once. Raises ManifestError."""
    names = open_parquet(manifest.location).schema_arrow.names
    for name, count in Counter(names).items():
        if count > 1:
            raise ManifestError(f"{manifest.location} names the column {name!r} twice")
    return tuple(names)


def types(manifest: Manifest, wanted: Collection[str]) -> dict[str, pa.DataType]:
    """The types of the wanted columns. Raises ManifestError."""
    schema = open_parquet(manifest.location).schema_arrow
    return {field.name: field.type for field in schema if field.name in wanted}


def rows(manifest: Manifest, wanted: Collection[str]) -> Iterator[ManifestRow]:
    """The file's rows with those of the wanted columns that exist. Raises ManifestError."""
    return rows_between(manifest, wanted, RowSlice(0, MAX_ROWS))


def rows_between(
    manifest: Manifest, wanted: Collection[str], part: RowSlice
) -> Iterator[ManifestRow]:
    """Some of the rows, of which only their row groups, and their pages of images, are read."""
    location = manifest.location
    file = open_parquet(location)
    chosen = [field for field in file.schema_arrow if field.name in wanted]
    check_types(chosen, location)
    number = part.start
    try:
        with open_pages(location) as pages:
            table = ParquetRows(file, pages, [field.name for field in chosen], manifest)
            for values, fault in table.rows(part):
                number += 1
                yield ManifestRow(f"row {number}", values, fault)
    except _BROKEN as problem:
        reason = f": {problem}" if isinstance(problem, RemoteError | TooLarge) else ""
        raise ManifestError(
            f"{location}, after row {number}: it cannot be read{reason}"
        ) from problem


class ParquetRows:
    """Reads the columns of these names: images by their pages, all others by pyarrow."""

    def __init__(self, file: Any, pages: BinaryIO, names: list[str], manifest: Manifest):
        self._file, self._pages, self._image_name = file, pages, manifest.image_column
        leaf = image_leaf(file, manifest.image_column) if self._image_name in names else None
        self._images = ImageColumn(file, pages, leaf) if leaf else None
        self._leaves = [
            one
            for name in names
            for one in leaves_of(file.schema, name)
            if not leaf or one[0] != leaf[0]
        ]

    def rows(self, part: RowSlice) -> Iterator[tuple[dict[str, Any], Fault | None]]:
        """The values of a part of the rows, and the fault of an image that cannot be read."""
        first = 0
        for number in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(number).num_rows
            last = min(part.stop, first + count)
            here = RowSlice(max(part.start, first), last, part.needs_image)
            if here.start < last:
                yield from self._group_rows(number, first, here)
            first += count

    def _group_rows(
        self, number: int, first: int, part: RowSlice
    ) -> Iterator[tuple[dict[str, Any], Fault | None]]:
        others = self._values(number, part.start - first, part.stop - first)
        if self._images is None:
            yield from ((values, None) for values in others)
            return
        cells = self._images.cells(number, first, part)
        for values, cell in zip(others, cells, strict=True):
            path = values.get(self._image_name)
            data = {
                "bytes": None if isinstance(cell, Fault) else cell,
                "path": (path or {}).get("path"),
            }
            yield values | {self._image_name: data}, cell if isinstance(cell, Fault) else None

    def _values(self, number: int, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """The values of some rows of a row group, except for its images."""
        if not self._leaves:
            yield from ({} for _ in range(start, stop))
            return
        group = self._file.metadata.row_group(number)
        size = batch_rows(self._pages, self._leaves, group)
        names = [leaf.path for _, leaf in self._leaves]
        row = 0
        for batch in self._file.iter_batches(size, row_groups=[number], columns=names):
            if row + len(batch) > start:
                found = batch.slice(max(0, start - row), stop - max(start, row))
                columns = [to_values(column) for column in found.columns]
                for values in zip(*columns, strict=True):
                    yield dict(zip(found.schema.names, values, strict=True))
            row += len(batch)
            if row >= stop:
                return


def open_pages(location: FileLocation) -> BinaryIO:
    """The file, opened for its pages. Raises OSError."""
    if isinstance(location, RemoteFile):
        return location.open(HEADER_BLOCK)
    return Path(location).open("rb", buffering=0)  # only what is asked for is read


def open_parquet(location: FileLocation) -> Any:
    """The file with its footer read. Raises ManifestError."""
    try:
        # pages are read when they are needed: a row group may hold thousands of images
        file = pq.ParquetFile(open_input(location), pre_buffer=False, buffer_size=2**20)
    except _BROKEN as problem:
        reason = f": {problem}" if isinstance(problem, RemoteError) else ""
        raise ManifestError(f"{location} is not a readable Parquet file{reason}") from problem
    if file.metadata.num_rows > MAX_ROWS:
        raise ManifestError(f"{location} says that it has {file.metadata.num_rows:,} rows")
    return file


def open_input(location: FileLocation) -> Any:
    """The file as an input for pyarrow."""
    if isinstance(location, RemoteFile):
        return location.open(HEADER_BLOCK)
    return pa.OSFile(os.fsencode(location))


PARQUET = ManifestReader(rows, columns, rows_between=rows_between, types=types)
