"""Reads Parquet manifests, a few rows at a time, through the process that has limits."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pgcli.arrow import plain_type, to_values
from pgcli.errors import ManifestError, SourceUnavailable
from pgcli.images.child_process import ProcessFailed
from pgcli.inputs.options import START, ManifestRow, Mark, refuse_lfs_pointer
from pgcli.inputs.parquet_process import MAX_RATIO, MAX_ROW_BYTES, PROCESS
from pgcli.inputs.tables import Table
from pgcli.records import Fault
from pgcli.stores import RemoteError
from pgcli.stores.urls import is_web

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
