"""Reads Parquet manifests, a few rows at a time, in a process with limits of memory and time.

Replies of the process are in Arrow's stream format. If a file crashes it, only the requested rows
fail.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from pgcli.arrow import plain_type, to_values
from pgcli.errors import ManifestError, SourceUnavailable
from pgcli.images.child_process import (
    Connection,
    ProcessFailed,
    ServedProcess,
    limit_processor_time,
    start_serving,
)
from pgcli.inputs.options import START, ManifestRow, Mark, refuse_lfs_pointer
from pgcli.inputs.tables import Table
from pgcli.records import Fault
from pgcli.stores import Reader, RemoteError
from pgcli.stores.files import open_regular
from pgcli.stores.urls import is_web

#: The limit for reading one batch, in processor time.
PROCESSOR_SECONDS = 30
#: The size of a batch to read, by the sizes stated in the file, and the limit of a sent batch.
BATCH_BYTES, MAX_BATCH_BYTES = 16 * 2**20, 32 * 2**20
#: The limit of a row; larger images are not read from tables.
MAX_ROW_BYTES = 64 * 2**20
MAX_REPLY_BYTES = MAX_ROW_BYTES + MAX_BATCH_BYTES
#: A batch that takes more than `MAX_ROW_BYTES` and this many times its bytes in the file is a bomb.
MAX_RATIO = 200
MAX_BATCH_ROWS = 2**16
NO_ROWS = pa.record_batch([], names=[])
REMOTE_BYTES = 2**20  # of a remote file in one request

#: The exceptions of reading a damaged file.
BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError, LookupError)
#: A file of a hundred bytes can state any number of rows.
MAX_ROWS = 2**32
#: Of the kept columns of rows that are asked for at once, unless the file is that large.
MAX_TABLE_BYTES = 256 * 2**20
MAX_TYPE_CHARACTERS = 200

LARGE_ROW = Fault("too_large", f"The row of the table exceeds {MAX_ROW_BYTES >> 20} MiB.")
LARGE_GROUP = Fault(
    "too_large",
    "Reading the row group of the Parquet file that holds the row takes too much memory or time.",
)
DAMAGED = Fault("decode_failed", "The row group of the Parquet file that holds the row is damaged.")
IMAGE_TYPES = (types.is_string, types.is_large_string, types.is_null)
LIST_TYPES = (
    *(types.is_list, types.is_large_list, types.is_fixed_size_list),
    *(types.is_list_view, types.is_large_list_view),
)
BINARY_TYPES = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)


class Layout(NamedTuple):
    """The footer of a file: its columns, also in plain types, and the row behind each row group."""

    schema: pa.Schema
    plain: pa.Schema
    ends: tuple[int, ...]


class Part(NamedTuple):
    """The first of the requested rows: their count, their values, and their fault if any."""

    rows: int
    batch: pa.RecordBatch | None = None
    fault: Fault | None = None


class ParquetTable(Table):
    """A Parquet file: its footer has the columns, their types, and the row count."""

    @cached_property
    def layout(self) -> Layout:
        """The footer. Raises ManifestError for an unreadable file."""
        try:
            header, data = self._ask({"columns": None})
            if "problem" in header:
                raise self._unreadable()
            schema = pa.ipc.read_schema(pa.py_buffer(data))
            plain = pa.schema([(field.name, plain_type(field.type)) for field in schema])
            layout = Layout(schema, plain, tuple(header["ends"]))
        except (ProcessFailed, pa.ArrowException, RecursionError) as problem:
            raise self._unreadable() from problem
        if layout.ends and layout.ends[-1] > MAX_ROWS:
            raise ManifestError(f"{self.name} states {layout.ends[-1]:,} rows")
        return layout

    def _unreadable(self) -> ManifestError:
        """The error for a file with an unreadable footer."""
        refuse_lfs_pointer(self.file)
        return ManifestError(
            f"{self.name} is not a readable Parquet file",
            hint="copy or download it again; it may be incomplete, or in another format",
        )

    def schema(self) -> pa.Schema:
        schema = self.layout.schema
        for name, count in Counter(schema.names).items():
            if count > 1:
                raise ManifestError(f"{self.name} names the column {name!r} twice")
        return schema

    def stated_rows(self) -> int:
        return (0, *self.layout.ends)[-1]

    def mark_before(self, row: int) -> tuple[Mark, int]:
        return Mark(row, row), 0

    def check_columns(self) -> None:
        """See `Table`. Raises ManifestError for images of another type."""
        super().check_columns()
        number = self.layout.schema.get_field_index(self.image_column)
        if number >= 0 and not is_image(self.layout.plain.field(number).type):
            kind = str(self.layout.schema.field(number).type)[:MAX_TYPE_CHARACTERS]
            message = f"{self.name}: the image in {self.image_column!r} is neither a path nor bytes"
            raise ManifestError(f"{message}, but {kind}")

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """See `Table`. Unreadable rows have a fault."""
        number, names = mark.offset, self._names(columns, images=images)
        for part in self._parts(names, number, self.stated_rows()):
            column_names: list[str] = []
            cells = iter([()] * part.rows)
            if part.batch is not None and part.batch.num_columns:
                column_names = part.batch.schema.names
                cells = zip(*map(to_values, part.batch.columns), strict=True)
            for values in cells:
                position = f"{self.name}, row {number + 1}"
                row: dict[str, Any] = dict(zip(column_names, values, strict=True))
                yield Mark(number, number), ManifestRow(position, row, part.fault)
                number += 1

    def _names(self, columns: Iterable[str], *, images: bool) -> list[str]:
        """The columns that exist; without `images`, without the bytes of images."""
        image, schema = self.image_column, self._plain_schema(columns)
        names: list[str] = schema.names
        if not images and image in names:
            names.remove(image)
            kind = schema.field(image).type
            kind = kind.value_type if is_list(kind) else kind
            if types.is_struct(kind) and kind.get_field_index("path") >= 0:
                names.append(f"{image}.path")
            elif not any(check(kind) for check in BINARY_TYPES):
                names.append(image)
        return names

    def image_texts(self, start: int, stop: int) -> pa.Array | None:
        """See `Table`. In structs, the texts are in the field `path`."""
        parts = [*self._parts(self._names([self.image_column], images=False), start, stop)]
        batches = [part.batch for part in parts if part.batch is not None and part.fault is None]
        if len(batches) < len(parts) or any(batch.num_columns != 1 for batch in batches):
            return None
        texts = pa.chunked_array([batch.column(0) for batch in batches]).combine_chunks()
        texts = pc.struct_field(texts, "path") if types.is_struct(texts.type) else texts
        return texts if types.is_string(texts.type) or types.is_large_string(texts.type) else None

    def kept_arrays(self, start: int, stop: int) -> Mapping[str, pa.ChunkedArray] | None:
        """See `Table`. A row with a fault has nulls."""
        if self.is_gone:
            return None
        rows = (self.record.chosen or range(stop))[start:stop]
        schema = self._plain_schema(column.source for column in self.kept)
        size = self.file.size if self.file.url_reader is None else 0
        tables, free = [schema.empty_table()], max(MAX_TABLE_BYTES, MAX_RATIO * size)
        for part in self._parts(schema.names, rows[0], rows[-1] + 1):
            table = pa.table([pa.nulls(part.rows, kind) for kind in schema.types], schema=schema)
            if part.batch is not None and part.fault is None:
                free -= part.batch.nbytes
                if free >= 0:
                    table = pa.Table.from_batches([part.batch.select(schema.names)]).cast(schema)
            tables.append(table)
        table = pa.concat_tables(tables).take([row - rows[0] for row in rows])
        columns: dict[str, Any] = {
            **{name: pa.array([value] * len(rows)) for name, value in self.partitions.items()},
            **dict(zip(schema.names, table.columns, strict=True)),
        }
        return {column.output: columns[column.source] for column in self.kept}

    def _plain_schema(self, columns: Iterable[str]) -> pa.Schema:
        """The columns that exist, in plain types."""
        wanted = frozenset(columns)
        return pa.schema([field for field in self.layout.plain if field.name in wanted])

    def _parts(self, names: list[str], start: int, stop: int) -> Iterator[Part]:
        """The rows of columns from `start` to before `stop`, in parts that fit into memory.

        Each part is in one row group. Raises ManifestError.
        """
        while start < stop:
            part = Part(min(stop - start, 2**16))
            if names:
                part = self._part(names, start, stop)
            others = [name for name in names if name != self.image_column]
            if part.batch is None and 0 < len(others) < len(names):
                named = self._part(others, start, start + part.rows)  # ids, which name the rows
                part = named._replace(fault=part.fault)
            start += part.rows
            yield part

    def _part(self, names: list[str], start: int, stop: int) -> Part:
        """The first rows of columns from `start` on, or the rest of a row group with its fault."""
        ends = self.layout.ends
        rows = min(stop, ends[bisect_right(ends, start)]) - start
        request = {"columns": names, "start": start, "stop": stop, "image": self.image_column}
        try:
            header, data = self._ask(request)
            if "problem" in header:
                is_large = header["problem"] == "too_large"
                return Part(rows, None, LARGE_GROUP if is_large else DAMAGED)
            batch = pa.ipc.open_stream(data).read_next_batch()
            batch.validate(full=True)  # texts that are not UTF-8, for one
        except ProcessFailed:
            return Part(rows, None, LARGE_GROUP)
        except pa.ArrowException:
            return Part(rows, None, DAMAGED)
        fault = LARGE_ROW if header["is_large"] else None
        return Part(header["rows"], batch, fault)

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], memoryview]:
        """The process's reply. Raises ProcessFailed; ManifestError for an unreadable URL."""
        path, reader = self.file.location, self.file.url_reader
        is_stored, stamp = reader is not None and not is_web(path), None
        try:
            if reader is None:
                path = str(
                    Path.cwd() / self.file.local_path
                )  # of this process, which may have changed its folder
                with suppress(OSError):
                    status = Path(path).stat()  # a file that changes is opened anew
                    stamp = [status.st_ino, status.st_size, status.st_mtime_ns]
            elif not is_stored:
                path = str(reader.local_copy(path))
            opened = {"file": path, "is_stored": is_stored, "stamp": stamp}
            header, data = PROCESS.ask({**opened, **request})
            if "unavailable" in header:
                message, hint = header["unavailable"]
                raise SourceUnavailable(message, hint=hint)
            if "remote" in header:
                raise RemoteError(Fault(*header["remote"]))
        except RemoteError as problem:
            message = f"{self.name} cannot be read: {problem}"
            raise ManifestError(message, hint="the same command tries again") from problem
        return header, data


def is_image(kind: pa.DataType) -> bool:
    """Whether values of the type may be paths or the bytes of images, structs of both, or lists."""
    kind = kind.value_type if is_list(kind) else kind
    kinds = [kind]
    if types.is_struct(kind):
        kinds = [field.type for field in kind if field.name in ("bytes", "path")]
    return bool(kinds) and all(
        any(check(kind) for check in (*IMAGE_TYPES, *BINARY_TYPES)) for kind in kinds
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether values of the type are lists."""
    return any(check(kind) for check in LIST_TYPES)


# --- the process


PROCESS = ServedProcess(__name__, "Parquet", MAX_REPLY_BYTES)


# --- in the process


def serve(connection: Connection, settings: Mapping[str, Any]) -> None:
    """Answer requests until the connection ends."""
    opened: dict[str, OpenTable] = {}
    start_serving(connection)
    while True:
        request, _ = connection.receive(0)
        key = json.dumps([request["file"], request["stamp"]])
        header, data = dict[str, Any](), pa.py_buffer(b"")
        try:
            if key not in opened:
                opened.clear()
                opened[key] = OpenTable(request)
            header, data = opened[key].answer(request)
        except RemoteError as problem:
            header = {"remote": [problem.fault.code, problem.fault.message]}
        except SourceUnavailable as problem:
            header = {"unavailable": [str(problem), problem.hint]}
        except (MemoryError, TooLarge):
            opened.clear()
            header = {"problem": "too_large"}
        except BROKEN as problem:
            opened.clear()
            header = {"problem": "damaged", "reason": str(problem)}
        limit_processor_time(0)
        connection.send(header, data)


#: It is given no URLs on web servers, and so no private hosts.
READER = Reader()


class TooLarge(Exception):
    """Rows decompress to too many times their size."""


class OpenTable:
    """An open Parquet file, and its last batch."""

    def __init__(self, request: Mapping[str, Any]):
        limit_processor_time(PROCESSOR_SECONDS)
        if request["is_stored"]:
            source: Any = READER.open(request["file"], REMOTE_BYTES)
        else:
            self._regular = open_regular(request["file"])
            source = pa.OSFile(f"/dev/fd/{self._regular.fileno()}")
        # pages are read when they are needed: a row group may hold thousands of images
        self._file = pq.ParquetFile(source, pre_buffer=False, buffer_size=2**20)
        metadata = self._file.metadata
        groups = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        self._ends = list(accumulate(groups))  # the number of the row behind each group
        if self._ends != sorted(self._ends) or min(self._ends, default=0) < 0:
            raise ValueError("a row group states less than no rows")
        schema = self._file.schema
        self._paths = [schema.column(number).path for number in range(len(schema))]
        self._below: dict[str, list[str]] = {}  # the paths of each column and field
        for path in self._paths:
            for name in accumulate(path.split("."), lambda name, field: f"{name}.{field}"):
                self._below.setdefault(name, []).append(path)
        # the batches of some columns of a group, and of these the last one, with its first row
        self._key: tuple[Any, ...] = ()
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._first, self._batch = 0, NO_ROWS

    def answer(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], pa.Buffer]:
        """The schema and the ends of the row groups, or the first of the requested rows.

        A row that is too large lacks its image, or all of its columns.
        """
        if request["columns"] is None:
            return {"ends": self._ends}, self._file.schema_arrow.serialize()
        columns = self._leaf_paths(request)
        stop = min(request["stop"], self._ends[bisect_right(self._ends, request["start"])])
        batch, rows = NO_ROWS, stop - request["start"]
        if columns:
            batch = self._batch_at(request["start"], columns)
            batch = batch.slice(request["start"] - self._first, rows)
            while len(batch) > 1 and batch.nbytes > MAX_BATCH_BYTES:
                batch = batch.slice(0, len(batch) // 2)
            rows = len(batch)
        header = {"rows": rows, "is_large": batch.nbytes > MAX_ROW_BYTES}
        if header["is_large"]:
            names = [name for name in batch.schema.names if name != request["image"]]
            batch = batch.select(names)
            batch = batch.select([]) if batch.nbytes > MAX_ROW_BYTES else batch
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return header, sink.getvalue()

    def _batch_at(self, row: int, columns: Sequence[str]) -> pa.RecordBatch:
        """The batch that contains a row; it begins with row `_first`.

        The batches of a row group are the same wherever reading begins.
        """
        group = bisect_right(self._ends, row)
        if self._key != (group, *columns) or row < self._first:
            self._batches = self._group_batches(group, columns)
            self._first, self._batch = self._ends[group - 1] if group else 0, NO_ROWS
            self._key = (group, *columns)
        while row >= self._first + len(self._batch):
            self._first, self._batch = self._first + len(self._batch), NO_ROWS
            limit_processor_time(PROCESSOR_SECONDS)
            self._batch = next(self._batches)
        return self._batch

    def _leaf_paths(self, request: Mapping[str, Any]) -> list[str]:
        """The paths of the requested columns."""
        return [path for name in request["columns"] for path in self._leaves(name)]

    def _leaves(self, name: str) -> list[str]:
        """The paths of a column, or of a field `column.field` of its structs or lists of them."""
        column, _, field = name.rpartition(".")
        of_lists = (p for p in self._below.get(column, ()) if p.endswith(f".{field}"))
        return self._below.get(name) or list(of_lists)

    def _group_batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a row group, in plain types, about BATCH_BYTES at a time."""
        metadata = self._file.metadata.row_group(group)
        # of an encrypted column, pyarrow ends the process here
        chunks = [metadata.column(n) for n, path in enumerate(self._paths) if path in columns]
        packed = sum(chunk.total_compressed_size for chunk in chunks)
        row_bytes = sum(chunk.total_uncompressed_size for chunk in chunks) // metadata.num_rows
        rows = min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // max(1, row_bytes)))
        for batch in self._file.iter_batches(
            rows, row_groups=[group], columns=columns, use_threads=False
        ):
            schema = pa.schema([(field.name, plain_type(field.type)) for field in batch.schema])
            batch = batch if batch.schema.equals(schema) else batch.cast(schema)
            if batch.nbytes > max(MAX_ROW_BYTES, MAX_RATIO * packed):
                raise TooLarge
            yield batch
        raise ValueError("a row group has fewer rows than it states")
