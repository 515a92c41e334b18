"""Reads Parquet manifests, a few rows at a time, through the process that has limits."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from pgcli.arrow_values import to_values
from pgcli.errors import ManifestError
from pgcli.images.child_process import ProcessFailed
from pgcli.inputs.parquet_process import MAX_RATIO, MAX_ROW_BYTES, PROCESS, plain_type
from pgcli.inputs.readers import InputFile, ManifestReader, ManifestRow, Mark, Wanted
from pgcli.printable import MAX_DEPTH
from pgcli.records import Fault
from pgcli.stores import RemoteError
from pgcli.stores.urls import is_web

#: A file of a hundred bytes can state any number of rows.
MAX_ROWS = 2**32
#: Of the kept columns of rows that are asked for at once, unless the file is that large.
MAX_TABLE_BYTES = 256 * 2**20

LARGE_ROW = Fault("too_large", f"The row of the table exceeds {MAX_ROW_BYTES >> 20} MiB.")
LARGE_GROUP = Fault(
    "too_large",
    "Reading the row group of the Parquet file that holds the row takes too much memory or time.",
)
DAMAGED = Fault("decode_failed", "The row group of the Parquet file that holds the row is damaged.")
IMAGE_TYPES = (types.is_string, types.is_large_string, types.is_null)
BINARY_TYPES = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)


class Layout(NamedTuple):
    """What the footer of a file says: its columns, and the number of the row behind each group."""

    schema: pa.Schema
    ends: tuple[int, ...]


class Part(NamedTuple):
    """The first of the rows that were asked for, their number and their fault if any."""

    rows: int
    batch: pa.RecordBatch | None = None
    fault: Fault | None = None


def columns(file: InputFile) -> tuple[str, ...]:
    """The columns that the file's footer names, each once. Raises ManifestError."""
    names = layout(file).schema.names
    name, count = max(Counter(names).items(), key=lambda pair: pair[1], default=("", 0))
    if count > 1:
        raise ManifestError(f"{file.name} names the column {name!r} twice")
    return tuple(names)


def total(file: InputFile) -> int:
    """The number of rows. Raises ManifestError."""
    return (0, *layout(file).ends)[-1]


def schema(file: InputFile, wanted: Wanted) -> pa.Schema:
    """The types of those wanted columns that exist.

    Raises ManifestError for a column that has no values in Python.
    """
    found = pa.schema([field for field in layout(file).schema if field.name in wanted.columns])
    for field in found:
        for kind in leaf_types(field.type, file):
            if types.is_timestamp(kind) and not is_known_zone(kind):
                raise ManifestError(
                    f"{file.name}: the column {field.name!r} has an unknown time zone {kind.tz!r}",
                    hint="write its times in UTC or without a zone, or leave the column out",
                )
        if field.name == wanted.image_column:
            kind = plain_type(field.type)
            pair = (
                {inner.name: inner.type for inner in kind} if types.is_struct(kind) else {"": kind}
            )
            if not pair.keys() <= {"", "bytes", "path"} or not all(map(is_image, pair.values())):
                message = f"{file.name}: the image in {field.name!r} is neither a path nor bytes"
                raise ManifestError(message)
    return found


def rows(file: InputFile, wanted: Wanted) -> Iterator[tuple[Mark, ManifestRow]]:
    """Rows from the number of the mark on, with those wanted columns that exist.

    A row that cannot be read has a fault. Raises ManifestError.
    """
    known, number = layout(file), wanted.mark.offset
    names = [name for name in known.schema.names if name in wanted.columns]
    image = wanted.image_column
    if not wanted.images and image in names:
        names.remove(image)
        kind = plain_type(known.schema.field(image).type)
        if types.is_struct(kind) and kind.get_field_index("path") >= 0:
            names.append(f"{image}.path")
        elif not any(check(kind) for check in BINARY_TYPES):
            names.append(image)
    for part in parts(file, names, image, number, total(file)):
        found: list[str] = []
        cells = iter([()] * part.rows)
        if part.batch is not None and part.batch.num_columns:
            found = part.batch.schema.names
            cells = zip(*map(to_values, part.batch.columns), strict=True)
        for values in cells:
            position = f"{file.name}, row {number + 1}"
            row = ManifestRow(position, dict(zip(found, values, strict=True)), part.fault)
            yield Mark(number, number), row
            number += 1


def arrays(file: InputFile, wanted: Wanted, start: int, stop: int) -> pa.Table:
    """Those wanted columns that exist, from row `start` to before `stop`; null for a row's fault.

    Raises ManifestError.
    """
    known = layout(file)
    names = [name for name in known.schema.names if name in wanted.columns]
    kinds = pa.schema([(name, plain_type(known.schema.field(name).type)) for name in names])
    size = file.size if file.url_reader is None else 0
    found, free = [kinds.empty_table()], max(MAX_TABLE_BYTES, MAX_RATIO * size)
    for part in parts(file, names, wanted.image_column, start, stop):
        table = pa.table([pa.nulls(part.rows, kind) for kind in kinds.types], schema=kinds)
        if part.batch is not None and part.fault is None:
            free -= part.batch.nbytes
            if free >= 0:
                table = pa.Table.from_batches([part.batch.select(names)]).cast(kinds)
        found.append(table)
    return pa.concat_tables(found)


def parts(file: InputFile, names: list[str], image: str, start: int, stop: int) -> Iterator[Part]:
    """The rows of columns from `start` to before `stop`, in parts that fit into memory.

    Each part is of one row group. Raises ManifestError.
    """
    known = layout(file)
    while start < stop:
        part = Part(min(stop - start, 2**16))
        if names:
            end = min(stop, known.ends[bisect_right(known.ends, start)])
            request = {"columns": names, "start": start, "stop": stop, "image": image}
            try:
                header, data = ask(file, request)
                if "problem" in header:
                    fault = LARGE_GROUP if header["problem"] == "too_large" else DAMAGED
                    part = Part(end - start, None, fault)
                else:
                    batch = pa.ipc.open_stream(data).read_next_batch()
                    batch.validate(full=True)  # texts that are not UTF-8, for one
                    part = Part(header["rows"], batch, LARGE_ROW if header["is_large"] else None)
            except ProcessFailed:
                part = Part(end - start, None, LARGE_GROUP)
            except pa.ArrowException:
                part = Part(end - start, None, DAMAGED)
        start += part.rows
        yield part


def layout(file: InputFile) -> Layout:
    """What the footer says. Raises ManifestError for a file that is not readable."""
    return _layout(file, stamp(file))


@lru_cache(maxsize=16)
def _layout(file: InputFile, stamp: tuple[int, ...]) -> Layout:
    try:
        header, data = ask(file, {"columns": None})
        if "problem" in header:
            raise ManifestError(f"{file.name} is not a readable Parquet file")
        found = Layout(pa.ipc.read_schema(pa.py_buffer(data)), tuple(header["ends"]))
    except (ProcessFailed, pa.ArrowException) as problem:
        raise ManifestError(f"{file.name} is not a readable Parquet file") from problem
    if found.ends and found.ends[-1] > MAX_ROWS:
        raise ManifestError(f"{file.name} says that it has {found.ends[-1]:,} rows")
    return found


def ask(file: InputFile, request: dict[str, Any]) -> tuple[dict[str, Any], bytearray]:
    """The reply of the process. Raises ProcessFailed, and ManifestError for an address."""
    path, is_stored = file.location, file.url_reader is not None and not is_web(file.location)
    if file.url_reader is None:  # this process may have changed its folder since the other began
        path = str(Path.cwd() / path)
    elif not is_stored:
        try:
            path = str(file.url_reader.local_copy(path))
        except RemoteError as problem:
            raise unreadable(file, problem) from problem
    place = {"file": path, "is_stored": is_stored, "stamp": stamp(file)}
    header, data = PROCESS.ask({**place, **request})
    if "remote" in header:
        raise unreadable(file, RemoteError(Fault(*header["remote"])))
    return header, data


def unreadable(file: InputFile, problem: RemoteError) -> ManifestError:
    """The error for a file at an address that cannot be read now."""
    message = f"{file.name} cannot be read: {problem}"
    return ManifestError(message, hint="the same command tries again")


def stamp(file: InputFile) -> tuple[int, ...]:
    """What changes with a local file, so that it is opened again."""
    try:
        status = os.stat(file.location) if file.url_reader is None else None  # noqa: PTH116
    except OSError:
        status = None
    return () if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)


def is_image(kind: pa.DataType) -> bool:
    """Whether values of the type may be paths or the bytes of images."""
    return any(check(kind) for check in (*IMAGE_TYPES, *BINARY_TYPES))


def leaf_types(kind: pa.DataType, file: InputFile, depth: int = 0) -> Iterator[pa.DataType]:
    """The types of the values in lists and structs. Raises ManifestError for too many levels."""
    if depth > MAX_DEPTH:
        raise ManifestError(f"{file.name}: a column is nested too deeply")
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not types.is_nested(kind):
        yield kind
    for number in range(kind.num_fields):
        yield from leaf_types(kind.field(number).type, file, depth + 1)


def is_known_zone(kind: pa.TimestampType) -> bool:
    """Whether times of this type can be converted."""
    try:
        pa.scalar(0, kind).cast(pa.string())
    except pa.ArrowException:
        return False
    return True


PARQUET = ManifestReader(rows, columns, schema, total, arrays)
