"""The process that reads Parquet with pyarrow, within limits on its memory and processor time.

Replies are in Arrow's stream format. If a file crashes the process, only the requested rows fail.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgcli.arrow import plain_type
from pgcli.errors import PgcliError, SourceUnavailable
from pgcli.images.child_process import (
    ChildProcess,
    Connection,
    ProcessFailed,
    limit_processor_time,
    start_serving,
)
from pgcli.stores import Reader, RemoteError
from pgcli.stores.files import open_regular

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


class ParquetProcess:
    """The process; starts with the first request, and again after it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._owner = 0

    def ask(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], memoryview]:
        """The reply to a request. Raises ProcessFailed if the process dies twice.

        One death is no proof: the process also dies with the thread that started it, and of rows
        that it read ahead.
        """
        with self._lock:
            try:
                return self._ask(request)
            except ProcessFailed:
                return self._ask(request)

    def _ask(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], memoryview]:
        if self._process is None or self._owner != os.getpid():
            try:
                self._process, self._owner = ChildProcess(__name__), os.getpid()
                self._process.wait_until_ready()
            except ProcessFailed as problem:
                self.close()
                message = f"the process that reads Parquet cannot start: {problem}"
                raise PgcliError(message, hint="pgcli doctor shows what is missing") from problem
        try:
            self._process.send(request)
            return self._process.receive(MAX_REPLY_BYTES)
        except ProcessFailed:
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.close()


PROCESS = ParquetProcess()
atexit.register(PROCESS.close)


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
