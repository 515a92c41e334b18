"""Parquet files and other files of tables of rows with metadata: written, and read back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar

import pyarrow

from pgcli.arrow import MISMATCHES, NULL, STRING, LossyCast, cast_column, common_type, to_values
from pgcli.errors import UsageError
from pgcli.images.child_process import memory_limit
from pgcli.output.schema import (
    EMBEDDING,
    VALUES,
    Cell,
    embedding_dim_of,
    is_page_type,
    page_texts,
    rows_table,
)
from pgcli.rows import RowSchema, json_safe
from pgcli.stores.files import open_regular
from pgcli.text import is_deep

Row = Mapping[str, Any]
Value = TypeVar("Value")

#: The largest table in a file, in bytes of memory, unless it is a single row.
MAX_GROUP_BYTES = 64 * 2**20
PAGE_GROUP_BYTES = 8 * 2**20
TABLE_ROWS = 10_000  # rows that become a table at once
READ_ROWS = 1000  # rows that become Python values at a time
#: The limit for those rows: a few kilobytes in a file can unpack to any size.
READ_BYTES = 2**30
#: Or so many times the file's size, for pages of a thousand rows; and for all of its rows.
PAGE_RATIO, MAX_RATIO = 4, 1000
#: The metadata keys: the settings, which are part of the contract, and the fields of `PartInfo`.
SETTINGS = b"pgcli"
RUN, FIRST, ROWS, ERRORS, CUT = (
    b"pgcli." + name for name in (b"run", b"first", b"rows", b"errors", b"cut")
)


@dataclass(frozen=True)
class PartInfo:
    """The content of a run's file: `rows` rows from the run's row `first`.

    `errors` counts the error rows by code, `cut` the answers that the limit of tokens cut.
    """

    run: str
    first: int
    rows: int
    errors: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cut: int = 0


def part_metadata(info: PartInfo) -> dict[bytes, bytes]:
    """A file's metadata, for `TableFormat.write_tables`."""
    return {
        SETTINGS: json.dumps(dict(info.settings), default=str).encode(),
        RUN: info.run.encode(),
        FIRST: str(info.first).encode(),
        ROWS: str(info.rows).encode(),
        ERRORS: json.dumps(dict(info.errors)).encode(),
        CUT: str(info.cut).encode(),
    }


@dataclass(frozen=True)
class TableFormat:
    """A format of files of Arrow tables with metadata in their schema.

    `writer` opens a file for tables of a schema, and has `write_table` and `close`; `read_schema`
    reads the schema; `batches` reads some columns, none or all, in the batches that were written,
    split so that none has more rows than the limit.
    """

    writer: Callable[[BinaryIO, pyarrow.Schema], Any]
    read_schema: Callable[[BinaryIO], pyarrow.Schema]
    batches: Callable[[BinaryIO, Sequence[str] | None, int], Iterator[pyarrow.RecordBatch]]

    def write(self, file: BinaryIO, rows: Iterable[Row], schema: RowSchema) -> int:
        """Write the rows of a result file; return the row count.

        Each kept column has the common type of its values; a temporary file beside the result holds
        the tables until all types are known. Raises UsageError for a value that does not fit.
        """
        tables = row_tables(rows, schema)
        inferred = [
            name for name in (VALUES, *schema.keep) if name in (*schema.columns, *schema.keep)
        ]
        if not inferred and EMBEDDING not in schema.columns:
            return self.write_tables(file, tables)
        schemas: list[pyarrow.Schema] = []
        with TemporaryFile(dir=Path(file.name).parent) as spool:
            for table in tables:
                schemas.append(table.schema)
                with pyarrow.ipc.new_stream(spool, table.schema) as stream:
                    stream.write_table(table)
            common = schemas[-1]  # of embeddings, the last table has the type
            for name in inferred:
                kind = common_type(dict.fromkeys(each.field(name).type for each in schemas))
                field = pyarrow.field(name, STRING if kind == NULL else kind)
                common = common.set(common.get_field_index(name), field)
            spool.seek(0)
            spooled = (pyarrow.ipc.open_stream(spool).read_all() for _ in schemas)
            return self.write_tables(file, spooled, schema=common)

    def write_tables(
        self,
        file: BinaryIO,
        tables: Iterable[pyarrow.Table],
        metadata: Mapping[bytes, bytes] | None = None,
        schema: pyarrow.Schema | None = None,
    ) -> int:
        """Write the tables as they come, cast to a schema or the first one's; return the row count.

        Raises UsageError for a value that does not fit.
        """
        writer, rows = None, 0
        try:
            for table in tables:
                if writer is None:
                    schema = schema or table.schema
                    writer = self.writer(file, schema.with_metadata(dict(metadata or {})))
                for group in _groups(cast_table(table, schema)):
                    writer.write_table(group, len(group))
                rows += len(table)
        finally:
            if writer is not None:
                writer.close()
        return rows

    def tables(
        self, file: BinaryIO, columns: Sequence[str] | None = None
    ) -> Iterator[pyarrow.Table]:
        """The tables that were written, one at a time; a file without any gives an empty one.

        With `columns`, only the columns with these names.
        """
        is_empty = True
        for batch in self.batches(file, columns, sys.maxsize):
            is_empty = False
            yield pyarrow.Table.from_batches([batch])
        if is_empty:
            file.seek(0)
            yield self.read_schema(file).empty_table()

    def read(self, file: Path, *, exact: bool = False) -> Iterator[Row]:
        """The rows of a file.

        Kept columns have the same values as in JSON lines, or with `exact` cells, from which
        `rows_table` makes columns of the same types again. Raises UsageError for rows that take
        more memory than is plausible.
        """
        with open_regular(file) as stream:
            schema = self.read_schema(stream)
            kept = {*RowSchema.of(schema.names).keep, VALUES}
            stream.seek(0)
            batches = self.batches(stream, None, READ_ROWS)
            pyarrow.allocate_buffer(1)  # before the limit: the first allocation reserves a gigabyte
            size, first = os.fstat(stream.fileno()).st_size, 0
            limit = max(READ_BYTES, PAGE_RATIO * size)
            free: float = max(READ_BYTES, MAX_RATIO * size)
            while part := read_part(batches, kept, limit, exact=exact):
                columns, bytes_read = part
                free -= bytes_read
                if free < 0:
                    raise UsageError(
                        f"{file} unpacks to suspiciously many bytes, at row {first + 1:,}",
                        hint="if you trust it, write it again without dictionaries "
                        "(in pyarrow, use_dictionary=False)",
                    )
                for values in zip(*columns.values(), strict=True):
                    yield dict(zip(columns, values, strict=True))
                    first += 1

    def count(self, file: Path) -> int:
        """The number of rows of a file."""
        with open_regular(file) as stream:
            return sum(map(len, self.batches(stream, [], sys.maxsize)))

    def settings(self, file: Path) -> Mapping[str, Any]:
        """The settings of the run or search that wrote a file; empty for any other file."""
        return _settings(self._metadata(file))

    def part_info(self, source: Path | BinaryIO) -> PartInfo | None:
        """The content of a complete file of a run; None for any other file."""
        metadata = self._metadata(source)
        try:
            errors = {str(code): int(n) for code, n in json.loads(metadata[ERRORS]).items()}
            first, rows = int(metadata[FIRST]), int(metadata[ROWS])
            cut = int(metadata.get(CUT, b"0"))
            run = metadata[RUN].decode()
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
            return None
        if min(first, rows, cut, *errors.values()) < 0:
            return None
        return PartInfo(run, first, rows, errors, _settings(metadata), cut)

    def _metadata(self, source: Path | BinaryIO) -> Mapping[bytes, bytes]:
        """A file's metadata; empty if the file has another format."""
        try:
            with open_regular(source) if isinstance(source, Path) else source as stream:
                schema = self.read_schema(stream)
        except (OSError, pyarrow.ArrowException):
            return {}
        metadata: Mapping[bytes, bytes] = schema.metadata or {}
        return metadata


def row_tables(rows: Iterable[Row], schema: RowSchema) -> Iterator[pyarrow.Table]:
    """The rows as tables, with kept columns of possibly different types; at least one table.

    Raises UsageError for a value that its column cannot hold.
    """
    dim = None
    for batch in bounded(rows, lambda row: len(str(row.get(EMBEDDING) or ""))):
        dim = dim or embedding_dim_of(batch if EMBEDDING in schema.columns else ())
        try:
            table = rows_table(batch, schema, None, dim)
        except MISMATCHES as problem:
            raise UsageError(
                f"a row does not fit the columns of a table: {problem}", hint="write a .jsonl file"
            ) from problem
        yield table


def bounded(rows: Iterable[Value], size: Callable[[Value], int]) -> Iterator[list[Value]]:
    """The rows in lists, at least one, of at most TABLE_ROWS rows and about MAX_GROUP_BYTES."""
    batch, held, is_first = list[Value](), 0, True
    for row in rows:
        batch.append(row)
        held += size(row)
        if len(batch) == TABLE_ROWS or held >= MAX_GROUP_BYTES:
            yield batch
            batch, held, is_first = [], 0, False
    if batch or is_first:
        yield batch


def cast_table(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """The table with the columns of the schema; missing columns are null. Raises UsageError."""
    if table.schema.equals(schema):
        return table
    columns, names = [], {*table.column_names}
    for name, kind in zip(schema.names, schema.types, strict=True):
        column = table[name] if name in names else pyarrow.nulls(len(table))
        try:
            columns.append(cast_column(column, kind))
        except LossyCast as problem:
            raise UsageError(
                f"the column {name!r} has {problem}", hint="write a .jsonl file"
            ) from problem
    return pyarrow.Table.from_arrays(columns, schema=schema)


def read_part(
    batches: Iterator[pyarrow.RecordBatch], kept: Set[str], limit: int, *, exact: bool
) -> tuple[dict[str, list[Any]], float] | None:
    """The columns of the next rows, and their size in memory; None at the end.

    Rows of more than `limit` bytes have an infinite size.
    """
    try:
        with memory_limit(limit):
            batch = next(batches, None)
            if batch is None:
                return None
            columns = {
                name: _values(column, is_kept=name in kept, exact=exact)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
            return columns, sum(map(_plain_bytes, batch.columns))
    except MemoryError:
        return {}, inf


def _plain_bytes(column: pyarrow.Array) -> int:
    """The bytes of a column's values; a repeated value counts each time."""
    is_dictionary = pyarrow.types.is_dictionary(column.type)
    return int((column.dictionary_decode() if is_dictionary else column).nbytes)


def _values(column: pyarrow.Array, *, is_kept: bool, exact: bool) -> list[Any]:
    if not is_kept and is_page_type(column.type):
        return page_texts(column)
    if not is_kept:
        return to_values(column)
    if exact:
        return [Cell(column, number) for number in range(len(column))]
    return [json_safe(value) for value in to_values(column)]


def _groups(table: pyarrow.Table) -> Iterator[pyarrow.Table]:
    """The table in slices of at most MAX_GROUP_BYTES, or of a single row; of pages of vectors less:
    each thread of a search holds one.
    """
    limit = PAGE_GROUP_BYTES if any(map(is_page_type, table.schema.types)) else MAX_GROUP_BYTES
    if table.nbytes <= limit or len(table) <= 1:
        if len(table):
            yield table
        return
    half = len(table) // 2
    yield from _groups(table.slice(0, half))
    yield from _groups(table.slice(half))


def _settings(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    try:
        settings = json.loads(metadata.get(SETTINGS, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) and not is_deep(settings) else {}


#: Rows that are read at a time; no row group written here is larger.
BATCH_BYTES = 2 * MAX_GROUP_BYTES


def parquet_writer(file: BinaryIO, schema: pyarrow.Schema) -> Any:
    """A writer of tables under the schema, each as a row group.

    Vectors are not compressed: that saves 7 percent, and takes longer to read.
    """
    from pyarrow import parquet

    vectors = {
        name
        for name, kind in zip(schema.names, schema.types, strict=True)
        if pyarrow.types.is_fixed_size_list(kind) or is_page_type(kind)
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
    from pyarrow import parquet

    # by default, pyarrow reads whole row groups instead of pages
    with parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20) as opened:
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            fitting = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            limit = max(1, min(rows, group.num_rows, fitting))
            yield from opened.iter_batches(limit, [number], columns, use_threads=False)


def parquet_schema(file: BinaryIO) -> pyarrow.Schema:
    """The schema of a file."""
    from pyarrow import parquet

    return parquet.read_schema(file)


PARQUET = TableFormat(parquet_writer, parquet_schema, parquet_batches)
