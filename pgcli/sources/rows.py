"""The rows of a manifest file, read as a stream: JSON lines, CSV, TSV or Parquet."""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from pgcli.errors import ManifestError
from pgcli.sources.reading import ending

LONGEST_LINE = 64 * 2**20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Row(NamedTuple):
    """One row, and where it stands for messages: `line 3`, `row 3`."""

    place: str
    values: Mapping[str, Any]


def columns(path: str) -> tuple[str, ...] | None:
    """The columns that the file's head names; None for JSON lines, whose rows name their own."""
    match ending(path):
        case ".parquet":
            return _parquet_columns(path)
        case ".csv" | ".tsv":
            return tuple(next(_table(path)))
    return None


def rows(path: str, wanted: Collection[str]) -> Iterator[Row]:
    """The file's rows, with the wanted columns at least. Raises ManifestError, naming the line."""
    match ending(path):
        case ".parquet":
            return _parquet_rows(path, wanted)
        case ".csv" | ".tsv":
            return _table_rows(path)
    return _json_rows(path)


def parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError, saying why, for anything else."""
    if b"\0" in line:
        raise ValueError("it holds a NUL byte")
    try:
        row = json.loads(line.rstrip().decode(), object_pairs_hook=_object, parse_constant=_refused)
    except UnicodeDecodeError as problem:
        raise ValueError("it is not UTF-8") from problem
    except json.JSONDecodeError as problem:
        raise ValueError(
            f"it is not valid JSON ({problem.msg}, column {problem.colno})"
        ) from problem
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    if b"\\u" in line and _has_lone_surrogate(row):
        raise ValueError("it escapes half of a surrogate pair")
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it gives a key twice")
    return values


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _has_lone_surrogate(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _json_rows(path: str) -> Iterator[Row]:
    for number, line in _lines(path):
        if line.strip():
            try:
                yield Row(f"line {number}", parsed(line))
            except ValueError as problem:
                raise ManifestError(f"{path}, line {number}: {problem}") from problem


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, without a byte order mark, none longer than the limit held in memory."""
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if number == 1 and line.startswith(_UTF16):
                    hint = "convert it: iconv -f UTF-16 -t UTF-8"
                    raise ManifestError(f"{path} is UTF-16, not UTF-8", hint=hint)
                if len(line) > LONGEST_LINE:
                    raise ManifestError(f"{path}, line {number}: it is longer than 64 MiB")
                yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except OSError as problem:
        raise ManifestError(f"{path} cannot be read: {problem.strerror}") from problem


def _text_lines(path: str) -> Iterator[str]:
    for number, line in _lines(path):
        if b"\0" in line:
            raise ManifestError(f"{path}, line {number}: it holds a NUL byte")
        try:
            yield line.decode()
        except UnicodeDecodeError as problem:
            raise ManifestError(f"{path}, line {number}: it is not UTF-8") from problem


def _table(path: str) -> Iterator[list[str]]:
    """The header of a CSV or TSV file, then its rows, each led by its line number as text."""
    csv.field_size_limit(LONGEST_LINE)  # a setting of the process: the csv module has no other
    delimiter = "\t" if ending(path) == ".tsv" else ","
    reader = csv.reader(_text_lines(path), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if not header:
            raise ManifestError(f"{path} is empty", hint="the first line names the columns")
        if len(set(header)) < len(header):
            raise ManifestError(f"{path}, line 1: it names a column twice")
        yield header
        for cells in reader:
            if cells and len(cells) != len(header):
                message = f"it has {len(cells)} columns, and the first line {len(header)}"
                raise ManifestError(f"{path}, line {reader.line_num}: {message}")
            if cells:
                yield [str(reader.line_num), *cells]
    except csv.Error as problem:
        raise ManifestError(f"{path}, line {reader.line_num}: {problem}") from problem


def _table_rows(path: str) -> Iterator[Row]:
    table = _table(path)
    header = next(table)
    for number, *cells in table:
        yield Row(f"line {number}", dict(zip(header, cells, strict=True)))


def _parquet_columns(path: str) -> tuple[str, ...]:
    return tuple(_parquet(path).schema_arrow.names)


def _parquet_rows(path: str, wanted: Collection[str]) -> Iterator[Row]:
    import pyarrow as pa

    file = _parquet(path)
    chosen = [field for field in file.schema_arrow if field.name in wanted]
    if not chosen:
        yield from (Row(f"row {n + 1}", {}) for n in range(file.metadata.num_rows))
        return
    plain = all(pa.types.is_string(field.type) for field in chosen)
    size = 4096 if plain else 16  # a row may hold the bytes of a whole picture
    number = 0
    try:
        for batch in file.iter_batches(batch_size=size, columns=[field.name for field in chosen]):
            for values in batch.to_pylist():
                number += 1
                yield Row(f"row {number}", values)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise ManifestError(f"{path}, after row {number}: it cannot be read") from problem


def _parquet(path: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pa.OSFile(os.fsencode(path))
        # pages are read as they are needed: a row group may hold thousands of pictures
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=2**20)
    except (pa.ArrowException, OSError) as problem:
        raise ManifestError(f"{path} is no readable Parquet file") from problem
