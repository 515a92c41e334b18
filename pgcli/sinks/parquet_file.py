"""Parquet files of chunks: written with their metadata, and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow
from pyarrow import parquet

from pgcli.arrow_values import to_values
from pgcli.regular_file import open_regular
from pgcli.rows import RowSchema, json_safe
from pgcli.sinks.chunk_store import Chunk
from pgcli.sinks.schema import Row, make_table, size_in_memory
from pgcli.state.write_errors import wrap_write_errors

#: The most bytes, in memory, of a row group.
MAX_GROUP_BYTES = 64 * 2**20
SETTINGS, CHUNKS, RUN_ID = b"pgcli", b"pgcli.chunks", b"pgcli.run"


def file_metadata(
    settings: Mapping[str, object], run_id: str, chunks: Sequence[Chunk]
) -> dict[bytes, bytes]:
    """The metadata of a Parquet file: the run's settings and id, and the chunks in the file."""
    return {
        SETTINGS: json.dumps(dict(settings), default=str).encode(),
        RUN_ID: run_id.encode(),
        CHUNKS: json.dumps([asdict(chunk) for chunk in chunks]).encode(),
    }


def chunks_in(file: Path | pyarrow.BufferReader, run_id: str) -> list[Chunk]:
    """The chunks in a Parquet file of this run; none in any other file."""
    try:
        return [Chunk(**chunk) for chunk in json.loads(metadata_of_run(file, run_id)[CHUNKS])]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []


def is_file_of_run(file: Path, run_id: str) -> bool:
    """Whether this run wrote the Parquet file, be it without rows."""
    return bool(metadata_of_run(file, run_id))


def metadata_of_run(file: Path | pyarrow.BufferReader, run_id: str) -> Mapping[bytes, bytes]:
    """The metadata of a Parquet file of this run; empty for any other file."""
    try:
        metadata: Mapping[bytes, bytes] = parquet.read_schema(file).metadata or {}
    except (OSError, pyarrow.ArrowInvalid):
        return {}
    is_of_run = metadata.get(RUN_ID) == run_id.encode("utf-8", "surrogatepass")
    return metadata if is_of_run else {}


def read_parquet(file: Path) -> Iterator[Row]:
    """The rows of a Parquet file, as they were before they were written."""
    with open_regular(file) as stream, parquet.ParquetFile(stream) as opened:
        for batch in opened.iter_batches(batch_size=1000):
            yield from batch_rows(batch)


def read_json_rows(file: Path) -> Iterator[Row]:
    """The rows of a Parquet file as JSON has them."""
    kept: tuple[str, ...] | None = None
    for row in read_parquet(file):
        kept = RowSchema.of(row).keep if kept is None else kept
        yield {**row, **{name: json_safe(row[name]) for name in kept}} if kept else row


def batch_rows(batch: pyarrow.RecordBatch) -> Iterator[Row]:
    """The rows of a batch. Raises ArrowInvalid."""
    names = batch.schema.names
    try:
        columns = list(map(to_values, batch.columns))
    except LookupError as problem:  # pytz's, where it is installed; else ArrowInvalid
        message = f"a column has an unknown time zone: {problem}"
        raise pyarrow.ArrowInvalid(message) from problem
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def read_row_groups(file: Path) -> Iterator[pyarrow.Table]:
    """The row groups of a Parquet file. Raises OutputFailed."""
    with wrap_write_errors(file), parquet.ParquetFile(file) as opened:
        for number in range(opened.num_row_groups):
            yield opened.read_row_group(number)


def write_parquet(
    file: Path, table: pyarrow.Table, rows: Sequence[Row], metadata: Mapping[bytes, bytes]
) -> None:
    """Write the table of these rows with the metadata of the file. Raises OSError."""
    parquet.write_table(
        table.replace_schema_metadata(metadata),
        file,
        compression="zstd",
        row_group_size=rows_per_group(rows),
    )


def file_size(rows: Sequence[Row], schema: RowSchema) -> int:
    """The bytes of a Parquet file of these rows."""
    stream = pyarrow.BufferOutputStream()
    parquet.write_table(make_table(rows, schema), stream, compression="zstd")
    return int(stream.getvalue().size)


def rows_per_group(rows: Sequence[Row]) -> int:
    """The size of row groups that stay within MAX_GROUP_BYTES."""
    size = sum(size_in_memory(dict(row)) for row in rows)
    return max(1, len(rows) * MAX_GROUP_BYTES // max(size, MAX_GROUP_BYTES))
