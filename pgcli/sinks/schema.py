"""The columns of a Parquet output and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow

from pgcli.arrow_values import from_json
from pgcli.rows import BOX_NUMBERS, RowSchema
from pgcli.sinks.column_types import as_text, make_column

Row = Mapping[str, Any]

STRING, FLOAT, INT = pyarrow.string(), pyarrow.float64(), pyarrow.int32()
CATEGORY = pyarrow.dictionary(INT, STRING)  # few values, many rows
BOX = pyarrow.struct([("label", STRING), *((name, FLOAT) for name in BOX_NUMBERS)])
#: The boxes of a file that a version without `confidence` began.
BOX_WITHOUT_CONFIDENCE = pyarrow.struct(list(BOX)[:-1])
RLE = pyarrow.struct([("size", pyarrow.list_(INT)), ("counts", STRING)])
MASK = pyarrow.struct([("codes", pyarrow.list_(pyarrow.int16())), ("rle", RLE)])
CHOICE = pyarrow.struct([("text", STRING), ("logprob", FLOAT), ("probability", FLOAT)])
ALTERNATIVE = pyarrow.struct([("text", STRING), ("logprob", FLOAT)])
TOKEN_LOGPROB = pyarrow.struct([("token", STRING), ("logprob", FLOAT)])
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
    "alternatives": pyarrow.list_(ALTERNATIVE),
    "token_logprobs": pyarrow.list_(TOKEN_LOGPROB),
}


def schema_types(schema: RowSchema) -> list[tuple[str, pyarrow.DataType]]:
    """The name and the type of each column except the kept ones, in order."""
    types = dict(TYPES)
    if not schema.confidence:
        types["boxes"] = pyarrow.list_(BOX_WITHOUT_CONFIDENCE)
    return [(name, types[name]) for name in schema.columns]


def make_table(
    rows: Sequence[Row], schema: RowSchema, types: Mapping[str, pyarrow.DataType] | None = None
) -> pyarrow.Table:
    """The rows as a table; kept columns have the given `types`, or else those of their values.

    Raises one of `column_types.MISMATCHES` if a value is not of its column's type.
    """
    columns = schema.columns
    arrays = [
        pyarrow.array([row[name] for row in rows], kind) for name, kind in schema_types(schema)
    ]
    for name in schema.keep:
        values = [row[name] for row in rows]
        kind = (types or {}).get(name)
        if kind is None:
            arrays.append(make_column(values))
        elif kind == STRING:
            arrays.append(as_text(values))
        else:
            arrays.append(from_json(values, kind))
    return pyarrow.Table.from_arrays(arrays, names=[*columns, *schema.keep])


def size_in_memory(value: Any) -> int:
    """The approximate size of a value in bytes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_in_memory, value.values()))
    return sum(map(size_in_memory, value)) if isinstance(value, list) else 8
