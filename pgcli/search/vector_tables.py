"""Reads Parquet files and JSON lines of vectors as tables with the same columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from pgcli.errors import UsageError
from pgcli.output.lines import parse_row, read_lines
from pgcli.search.nearest import BLOCK_ROWS, Rows, Vectors, float32
from pgcli.search.vector_columns import EMBEDDING, HINT, INDEX, NAMES, no_embedding, with_names
from pgcli.stores.files import open_regular


def read_parquet(file: Path) -> Iterator[pyarrow.Table]:
    """Blocks of a Parquet file with the columns EMBEDDING and NAMES."""
    with open_regular(file) as stream, parquet.ParquetFile(stream, pre_buffer=False) as opened:
        names = opened.schema_arrow.names
        if EMBEDDING not in names:
            raise no_embedding(file, names)
        columns = [name for name in (EMBEDDING, INDEX, *NAMES) if name in names]
        for batch in opened.iter_batches(BLOCK_ROWS, columns=columns):
            yield with_names(pyarrow.Table.from_batches([batch]), file)


def parquet_names(file: Path, wanted: Rows) -> tuple[pyarrow.Table, Rows, int]:
    """The columns that name these rows of a file, the rows that it has, and the number of all."""
    first, tables, places = 0, [], [wanted[:0]]
    with open_regular(file) as stream, parquet.ParquetFile(stream) as opened:
        columns = [name for name in (*NAMES, INDEX) if name in opened.schema_arrow.names]
        for number in range(opened.num_row_groups):
            count = opened.metadata.row_group(number).num_rows
            inside = wanted[(wanted >= first) & (wanted < first + count)]
            if len(inside):
                group = opened.read_row_group(number, columns=columns)
                found = {name: group.column(name) for name in group.column_names}
                rows = pyarrow.table({EMBEDDING: pyarrow.nulls(count)} | found)
                tables.append(with_names(rows, file).take(inside - first))
                places.append(inside)
            first += count
    empty = with_names(pyarrow.table({EMBEDDING: pyarrow.nulls(0)}), file)
    return pyarrow.concat_tables([empty, *tables]), np.concatenate(places), first


def jsonl_names(file: Path, wanted: Rows) -> tuple[pyarrow.Table, Rows, int]:
    """The columns that name these rows of a file, the rows that it has, and the number of all."""
    rows, places, count, left = [], [], 0, {*wanted.tolist()}
    for number, line in enumerate(read_lines(file)):
        if number in left and (row := parse_row(line.rstrip(b"\n") + b"\n")) is not None:
            rows.append({name: row.get(name) for name in (*NAMES, INDEX)})
            places.append(number)
        count += 1
    return names_table(rows), np.array(places, np.int64), count


def read_jsonl(file: Path) -> Iterator[pyarrow.Table]:
    """Blocks of a file of JSON lines with the columns EMBEDDING and NAMES.

    A last line without an end, as of a run that goes on, is left out.
    """
    lines, number = read_lines(file), 0
    while block := list(islice(lines, BLOCK_ROWS)):
        if not block[-1].endswith(b"\n") and parse_row(block[-1] + b"\n") is None:
            block.pop()
        rows = [json_row(line, file, number + place) for place, line in enumerate(block)]
        number += len(block)
        vectors = list_array([row[EMBEDDING] for row in rows])
        yield names_table(rows).append_column(EMBEDDING, vectors)


def json_row(line: bytes, file: Path, number: int) -> dict[str, Any]:
    """The columns of a line, with the vector as an array. Raises UsageError."""
    row = parse_row(line if line.endswith(b"\n") else line + b"\n")
    where = f"{file}: line {number + 1:,}"
    if row is None:
        raise UsageError(f"{where} is not a JSON object", hint=HINT)
    if EMBEDDING not in row:
        raise no_embedding(f"{where}", list(row))
    values = row[EMBEDDING]
    row[EMBEDDING] = None if values is None else json_vector(values, where)
    return row


def names_table(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """The columns NAMES and INDEX of rows of JSON."""
    indexes = [row.get(INDEX) for row in rows]
    whole = [one if type(one) is int and abs(one) < 2**63 else None for one in indexes]
    names = {name: text_array([row.get(name) for row in rows]) for name in NAMES}
    return pyarrow.table(names | {INDEX: pyarrow.array(whole, pyarrow.int64())})


def json_vector(values: Any, where: str) -> Vectors:
    """A list of numbers as an array. Raises UsageError."""
    is_numbers = isinstance(values, list) and {*map(type, values)} <= {float, int}
    try:
        if is_numbers and values:
            return float32(np.array(values, np.float64))
    except OverflowError:
        pass
    raise UsageError(f"{where}: its embedding is not a list of numbers", hint=HINT)


def list_array(vectors: Sequence[Vectors | None]) -> pyarrow.Array:
    """Arrays as an array of lists of float32."""
    sizes = [0 if vector is None else len(vector) for vector in vectors]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    values = np.concatenate([np.zeros(0, np.float32), *(v for v in vectors if v is not None)])
    is_null = pyarrow.array([vector is None for vector in vectors], pyarrow.bool_())
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), values, mask=is_null)


def text_array(values: Sequence[Any]) -> pyarrow.Array:
    """Values of JSON as text; null stays null."""
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value) for value in values
    ]
    safe = [None if text is None else text.encode("utf-8", "replace").decode() for text in texts]
    return pyarrow.array(safe, pyarrow.string())
