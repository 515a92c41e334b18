"""The columns of a Parquet output and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow

from pgcli.rows import RowSchema
from pgcli.sinks.column_types import as_text, make_column

Row = Mapping[str, Any]

STRING, FLOAT, INT = pyarrow.string(), pyarrow.float64(), pyarrow.int32()
CATEGORY = pyarrow.dictionary(INT, STRING)  # few values, many rows
BOX = pyarrow.struct(
    [("label", STRING), *((name, FLOAT) for name in ("xmin", "ymin", "xmax", "ymax", "score"))]
)
RLE = pyarrow.struct([("size", pyarrow.list_(INT)), ("counts", STRING)])
MASK = pyarrow.struct([("codes", pyarrow.list_(pyarrow.int16())), ("rle", RLE)])
CHOICE = pyarrow.struct([("text", STRING), ("logprob", FLOAT), ("probability", FLOAT)])
TYPES: Mapping[str, pyarrow.DataType] = {
    "index": pyarrow.int64(),
    "id": STRING,
    "image": STRING,
    "width": INT,
    "height": INT,
    "task": CATEGORY,
    "prompt": CATEGORY,
    "answer": STRING,
    "boxes": pyarrow.list_(BOX),
    "tokens": INT,
    "finish": CATEGORY,
    "logprob": FLOAT,
    "load_ms": FLOAT,
    "vision_ms": FLOAT,
    "prefill_ms": FLOAT,
    "decode_ms": FLOAT,
    "batch": INT,
    "model": CATEGORY,
    "error": CATEGORY,
    "error_message": STRING,
    "masks": pyarrow.list_(MASK),
    "choices": pyarrow.list_(CHOICE),
}


def make_table(
    rows: Sequence[Row], schema: RowSchema, types: Mapping[str, pyarrow.DataType] | None = None
) -> pyarrow.Table:
    """The rows as a table; kept columns have the given `types`, or those of their values.

    Raises one of `column_types.MISMATCHES` if a value is not of its column's type.
    """
    columns = schema.columns
    arrays = [pyarrow.array([row[name] for row in rows], TYPES[name]) for name in columns]
    for name in schema.keep:
        values = [row[name] for row in rows]
        if types is None:
            arrays.append(make_column(values))
        elif types[name] == STRING:
            arrays.append(as_text(values))
        else:
            arrays.append(pyarrow.array(values, types[name]))
    return pyarrow.Table.from_arrays(arrays, names=[*columns, *schema.keep])


def size_in_memory(value: Any) -> int:
    """The approximate size of a value in bytes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_in_memory, value.values()))
    return sum(map(size_in_memory, value)) if isinstance(value, list) else 8
