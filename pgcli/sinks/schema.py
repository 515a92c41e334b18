"""The columns of a Parquet output and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow

from pgcli.rows import RowSchema
from pgcli.sinks import column_types

Row = Mapping[str, Any]

REPEATED = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())  # few values, many rows
BOX = pyarrow.struct(
    [
        ("label", pyarrow.string()),
        ("xmin", pyarrow.float64()),
        ("ymin", pyarrow.float64()),
        ("xmax", pyarrow.float64()),
        ("ymax", pyarrow.float64()),
        ("score", pyarrow.float64()),
    ]
)
RLE = pyarrow.struct([("size", pyarrow.list_(pyarrow.int32())), ("counts", pyarrow.string())])
MASK = pyarrow.struct([("codes", pyarrow.list_(pyarrow.int16())), ("rle", RLE)])
CHOICE = pyarrow.struct(
    [("text", pyarrow.string()), ("logprob", pyarrow.float64()), ("probability", pyarrow.float64())]
)
TYPES: Mapping[str, pyarrow.DataType] = {
    "index": pyarrow.int64(),
    "id": pyarrow.string(),
    "image": pyarrow.string(),
    "width": pyarrow.int32(),
    "height": pyarrow.int32(),
    "task": REPEATED,
    "prompt": REPEATED,
    "answer": pyarrow.string(),
    "boxes": pyarrow.list_(BOX),
    "tokens": pyarrow.int32(),
    "finish": REPEATED,
    "logprob": pyarrow.float64(),
    "load_ms": pyarrow.float64(),
    "vision_ms": pyarrow.float64(),
    "prefill_ms": pyarrow.float64(),
    "decode_ms": pyarrow.float64(),
    "batch": pyarrow.int32(),
    "model": REPEATED,
    "error": REPEATED,
    "error_message": pyarrow.string(),
    "masks": pyarrow.list_(MASK),
    "choices": pyarrow.list_(CHOICE),
}


def table(
    rows: Sequence[Row], layout: RowSchema, kinds: Mapping[str, pyarrow.DataType] | None = None
) -> pyarrow.Table:
    """Rows as a table. Kept columns have the types of `kinds`, or else those of their values.

    Raises one of `kept.MISFITS` where a value is not of its type.
    """
    columns = layout.columns
    arrays = [pyarrow.array([row[name] for row in rows], TYPES[name]) for name in columns]
    for name in layout.keep:
        values = [row[name] for row in rows]
        if kinds is None:
            arrays.append(column_types.column(values))
        elif kinds[name] == pyarrow.string():
            arrays.append(column_types.as_text(values))
        else:
            arrays.append(pyarrow.array(values, kinds[name]))
    return pyarrow.Table.from_arrays(arrays, names=[*columns, *layout.keep])


def weight(value: Any) -> int:
    """About how many bytes a value takes in memory."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(weight, value.values()))
    return sum(map(weight, value)) if isinstance(value, list) else 8
