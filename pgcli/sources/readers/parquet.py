"""The rows of a Parquet manifest, no more of them in memory at once than their values allow."""

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
from pgcli.printable import MAX_DEPTH
from pgcli.remote import RemoteError, RemoteFile
from pgcli.sources.manifest_file import Where
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow

#: More rows than anybody asks about; a run-length of them fits in a hundred bytes.
MOST_ROWS = 2**32
#: So much may the values of one column come to in memory. A dictionary can spell one value of many
#: megabytes for each of millions of rows.
BYTES_AT_ONCE = 64 * 2**20
ROWS_AT_ONCE = 4096

_BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError, MemoryError)


def columns(manifest: Manifest) -> tuple[str, ...]:
    """Those that the file's footer names, each once. Raises ManifestError."""
    path = manifest.where
    names = opened(path).schema_arrow.names
    for name, count in Counter(names).items():
        if count > 1:
            raise ManifestError(f"{path} names the column {name!r} twice")
    return tuple(names)


def rows(manifest: Manifest, wanted: Collection[str]) -> Iterator[ManifestRow]:
    """The file's rows, with those of the wanted columns that there are. Raises ManifestError."""
    path = manifest.where
    file = opened(path)
    chosen = [field for field in file.schema_arrow if field.name in wanted]
    if not chosen:
        yield from (ManifestRow(f"row {n + 1}", {}) for n in range(file.metadata.num_rows))
        return
    if any(depth(field.type) > MAX_DEPTH for field in chosen):
        raise ManifestError(f"{path}: a column is nested too deeply")
    number = 0
    try:
        for batch in batches(path, file, [field.name for field in chosen]):
            for values in batch.to_pylist():
                number += 1
                yield ManifestRow(f"row {number}", values)
    except _BROKEN as problem:
        raise ManifestError(f"{path}, after row {number}: it cannot be read") from problem


def batches(path: Where, file: Any, names: list[str]) -> Iterator[Any]:
    """The columns of these names in stretches of rows that memory holds."""
    described = [file.schema.column(n) for n in range(len(file.schema))]
    leaves = [leaf for leaf in described if leaf.path.split(".")[0] in names]
    spelled = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    fixed = max((leaf.length for leaf in leaves if leaf.length), default=1)
    words = opened(path, read_dictionary=spelled)
    plain = all(pa.types.is_string(file.schema_arrow.field(name).type) for name in names)
    most = ROWS_AT_ONCE if plain else 16  # a row may hold the bytes of a whole picture
    for group in range(file.num_row_groups):
        longest = max(fixed, longest_word(words, group, spelled))
        size = max(1, min(most, BYTES_AT_ONCE // longest))
        yield from file.iter_batches(batch_size=size, row_groups=[group], columns=names)


def longest_word(words: Any, group: int, spelled: list[str]) -> int:
    """The bytes of the longest value in the dictionaries that a row group's columns begin with."""
    longest = 1
    for path in spelled:
        first = words.iter_batches(batch_size=1, row_groups=[group], columns=[path])
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
    pa.default_memory_pool().release_unused()  # forty times what a dictionary holds was taken
    return longest


def depth(type_: Any) -> int:
    """How many levels of lists and structs a type has."""
    inner = [type_.field(n).type for n in range(type_.num_fields)]
    return 1 + max(map(depth, inner), default=0) if pa.types.is_nested(type_) else 0


def opened(path: Where, **options: Any) -> Any:
    """The file, its footer read. Raises ManifestError."""
    try:
        # pages are read as they are needed: a row group may hold thousands of pictures
        file = pq.ParquetFile(stored(path), pre_buffer=False, buffer_size=2**20, **options)
    except _BROKEN as problem:
        why = f": {problem}" if isinstance(problem, RemoteError) else ""
        raise ManifestError(f"{path} is no readable Parquet file{why}") from problem
    if file.metadata.num_rows > MOST_ROWS:
        raise ManifestError(f"{path} says that it has {file.metadata.num_rows:,} rows")
    return file


def stored(path: Where) -> Any:
    """The file as pyarrow reads it, from any place."""
    if isinstance(path, RemoteFile):
        return path.open(2**16)  # footers are short, and pages are asked for as a whole
    return pa.OSFile(os.fsencode(path))


PARQUET = ManifestReader(rows, columns)
