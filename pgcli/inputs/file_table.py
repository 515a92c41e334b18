"""The records of an inventory's files, as a table of Arrow columns, and the stamps of images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import file_digest
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pgcli.errors import OutputExists
from pgcli.images.files import short_digest
from pgcli.stores.files import open_regular

#: Kinds of records: an image; a manifest or an archive; standard input that is read as it arrives;
#: a line of it, or the bytes of an image, that were read to its end; a text in place of an image.
IMAGE, TABLE, STDIN, LINE, BYTES, TEXT = range(6)
#: How files were found: as the user named them, below a folder, or among the matches of a pattern.
NAMED, BELOW, MATCHED = range(3)

#: Records that are Python objects at a time.
BATCH_RECORDS = 2**12


class FileRecord(NamedTuple):
    """A file of a source, in the order of the items.

    `source` is the number of the source; `name` is the path relative to its folder, or to the fixed
    part of its pattern, empty for a file that the user named. `size` and `mtime_ns` are null where
    they are not known. `rows` is the number of items; null before the end of standard input. A file
    with a `problem` (see `walk`) is an error row.

    Tables also have: the `columns` that rows name; `types`, the Arrow schema of the kept columns;
    `offsets` and `numbers`, the marks of each 1,000th row from the first; the numbers of the
    `chosen` rows if names select some; and for local files of lines the `digest` of the first
    `size` bytes. Archives also have the counts of `skipped` members by ending, and whether
    their keys end before the last dot.

    A later record of the same file has its newest size and time. Its `rows` are the lines appended
    since the earlier record; 0 for an image or table that was replaced before its rows were saved.
    """

    source: int
    place: int
    kind: int
    name: bytes = b""
    size: int | None = None
    mtime_ns: int | None = None
    rows: int | None = 1
    problem: str | None = None
    digest: bytes | None = None
    columns: Sequence[str] | None = None
    types: bytes | None = None
    offsets: Sequence[int] | None = None
    numbers: Sequence[int] | None = None
    chosen: Sequence[int] | None = None
    skipped: Sequence[tuple[str, int]] | None = None
    by_last_dot: bool | None = None


INTEGERS = pa.list_(pa.int64())
SCHEMA = pa.schema(
    [
        ("source", pa.int32()),
        ("place", pa.int8()),
        ("kind", pa.int8()),
        ("name", pa.large_binary()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("rows", pa.int64()),
        ("problem", pa.string()),
        ("digest", pa.binary()),
        ("columns", pa.list_(pa.string())),
        ("types", pa.binary()),
        ("offsets", INTEGERS),
        ("numbers", INTEGERS),
        ("chosen", INTEGERS),
        ("skipped", pa.map_(pa.string(), pa.int64())),
        ("by_last_dot", pa.bool_()),
    ]
)


def make_table(records: Iterable[FileRecord]) -> pa.Table:
    """The table of the records, in batches so that few are Python objects at a time."""
    remaining, batches = iter(records), []
    while batch := list(islice(remaining, BATCH_RECORDS)):
        columns = zip(zip(*batch, strict=True), SCHEMA.types, strict=True)
        batches.append(pa.record_batch([pa.array(*column) for column in columns], schema=SCHEMA))
    return pa.Table.from_batches(batches, SCHEMA)


def read_records(table: pa.Table) -> Iterator[FileRecord]:
    """The records of a table."""
    for batch in table.to_batches(BATCH_RECORDS):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield FileRecord(*values)


def to_arrow(table: pa.Table) -> bytes:
    """The content of the table's Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_arrow(file: bytes | Path, name: str) -> pa.Table:
    """The table that `to_arrow` wrote. Raises OutputExists with `name` for any other file."""
    try:
        data = pa.memory_map(str(file)) if isinstance(file, Path) else pa.BufferReader(file)
        table = pa.ipc.open_file(data).read_all()
        table.validate()
        if table.schema != SCHEMA:
            raise pa.ArrowInvalid("its columns differ")
    except (pa.ArrowException, OSError) as problem:
        raise not_files(name) from problem
    return table


def not_files(name: str) -> OutputExists:
    """The error for a state folder without a valid list of files."""
    return OutputExists(
        f"{name} in the state folder is not the list of files of a run",
        hint="<--overwrite> starts the run again; another <-o> keeps this output",
    )


#: Size, modification time and digest of a file; zeros if unknown.
Stamp = tuple[int, int, int]


def size_and_time(path: str | None) -> tuple[int, int]:
    """The size and the modification time of a file; -1 if it does not exist."""
    try:
        status = os.stat(path or "")  # noqa: PTH116 - Path is slow, and this is called for each image
    except (OSError, ValueError):
        return -1, -1
    return status.st_size, status.st_mtime_ns


def is_other(path: str, stamp: Stamp) -> bool:
    """Whether a file changed in size or time since its stamp, or does not exist."""
    return size_and_time(path) != stamp[:2]


def sizes_and_times(paths: Iterable[str | None]) -> np.ndarray:
    """The size and the modification time of each file."""
    return np.array([*map(size_and_time, paths)], np.int64)


def read_stamp(path: str, stamp: Stamp) -> Stamp | None:
    """The current stamp of a file; None for a missing file.

    Its bytes are read if it has the size in the earlier `stamp`.
    """
    size, time = size_and_time(path)
    if size != stamp[0]:
        return None if size < 0 else (size, time, 0)
    try:
        with open_regular(path) as file:
            return size, time, short_digest(file_digest(file, "sha256").digest())
    except OSError:
        return None


def no_stamps(count: int = 0) -> np.ndarray:
    """Unknown stamps, one per item."""
    return np.zeros((count, 3), np.int64)
