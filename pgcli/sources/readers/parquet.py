"""Reads Parquet manifests, a few rows at a time as the size of their values allows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgcli.errors import ManifestError
from pgcli.remote import RemoteError, RemoteFile
from pgcli.sources.manifest_file import FileLocation
from pgcli.sources.readers.parquet_types import check_types
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow

#: A file of a hundred bytes can state any number of rows.
MAX_ROWS = 2**32
#: Of one column's values in memory. A dictionary can store one value of many megabytes once and
#: repeat it in millions of rows.
MAX_BATCH_BYTES = 64 * 2**20
MAX_BATCH_ROWS = 4096
MAX_BATCH_IMAGES = 16  # rows that may hold the bytes of an image

_BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError, MemoryError)


def columns(manifest: Manifest) -> tuple[str, ...]:
    """The columns that the file's footer names, each once. Raises ManifestError."""
    names = open_parquet(manifest.location).schema_arrow.names
    for name, count in Counter(names).items():
        if count > 1:
            raise ManifestError(f"{manifest.location} names the column {name!r} twice")
    return tuple(names)


def rows(manifest: Manifest, wanted: Collection[str]) -> Iterator[ManifestRow]:
    """The file's rows with those of the wanted columns that exist. Raises ManifestError."""
    location = manifest.location
    file = open_parquet(location)
    chosen = [field for field in file.schema_arrow if field.name in wanted]
    if not chosen:
        yield from (ManifestRow(f"row {n + 1}", {}) for n in range(file.metadata.num_rows))
        return
    check_types(chosen, location)
    number = 0
    try:
        for batch in batches(location, file, [field.name for field in chosen]):
            for values in batch.to_pylist():
                number += 1
                yield ManifestRow(f"row {number}", values)
    except _BROKEN as problem:
        raise ManifestError(f"{location}, after row {number}: it cannot be read") from problem


def batches(location: FileLocation, file: Any, names: list[str]) -> Iterator[Any]:
    """The columns of these names in batches that fit into memory."""
    all_leaves = [file.schema.column(n) for n in range(len(file.schema))]
    leaves = [leaf for leaf in all_leaves if leaf.path.split(".")[0] in names]
    binary = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    fixed = max((leaf.length for leaf in leaves if leaf.length), default=1)
    dictionaries = open_parquet(location, read_dictionary=binary)
    is_text = all(pa.types.is_string(file.schema_arrow.field(name).type) for name in names)
    max_rows = MAX_BATCH_ROWS if is_text else MAX_BATCH_IMAGES
    for group in range(file.num_row_groups):
        longest = max(fixed, longest_value(dictionaries, group, binary))
        size = max(1, min(max_rows, MAX_BATCH_BYTES // longest))
        yield from file.iter_batches(batch_size=size, row_groups=[group], columns=names)


def longest_value(dictionaries: Any, group: int, columns: list[str]) -> int:
    """The bytes of the longest value in the dictionaries that a row group's columns begin with."""
    longest = 1
    for path in columns:
        first = dictionaries.iter_batches(batch_size=1, row_groups=[group], columns=[path])
        arrays = [column for batch in islice(first, 1) for column in batch.columns]
        while arrays:
            array = arrays.pop()
            if pa.types.is_dictionary(array.type):
                lengths = pc.binary_length(array.dictionary)
                longest = max(longest, pc.max(lengths).as_py() or 1)
            elif pa.types.is_struct(array.type):
                arrays += array.flatten()
            elif pa.types.is_nested(array.type):
                arrays.append(array.values)
    pa.default_memory_pool().release_unused()  # decoding took forty times a dictionary's size
    return longest


def open_parquet(location: FileLocation, **options: Any) -> Any:
    """The file with its footer read. Raises ManifestError."""
    try:
        # pages are read when they are needed: a row group may hold thousands of images
        file = pq.ParquetFile(open_input(location), pre_buffer=False, buffer_size=2**20, **options)
    except _BROKEN as problem:
        reason = f": {problem}" if isinstance(problem, RemoteError) else ""
        raise ManifestError(f"{location} is not a readable Parquet file{reason}") from problem
    if file.metadata.num_rows > MAX_ROWS:
        raise ManifestError(f"{location} says that it has {file.metadata.num_rows:,} rows")
    return file


def open_input(location: FileLocation) -> Any:
    """The file as an input for pyarrow."""
    if isinstance(location, RemoteFile):
        return location.open(2**16)  # footers are short, and pages are read as a whole
    return pa.OSFile(os.fsencode(location))


PARQUET = ManifestReader(rows, columns)
