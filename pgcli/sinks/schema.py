"""The columns of a Parquet output and their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
import pyarrow

from pgcli.arrow_values import from_json
from pgcli.rows import BOX_NUMBERS, RowSchema, embedding_values
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
TEXT_SCORE = pyarrow.struct(
    [("text", STRING), ("cosine", FLOAT), ("score", FLOAT), ("probability", FLOAT)]
)
LABEL = pyarrow.struct([("label", STRING), ("probability", FLOAT)])
#: The column whose type follows from the model, and the setting with the length of its lists.
EMBEDDING, EMBEDDING_DIM = "embedding", "embedding_dim"
#: The types of the columns; the values of embeddings are of float16 where that is chosen.
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
    "text": STRING,
    EMBEDDING: pyarrow.list_(pyarrow.float32()),
    "scores": pyarrow.list_(TEXT_SCORE),
    "labels": pyarrow.list_(LABEL),
}


def schema_types(
    schema: RowSchema, embedding_dim: int | None = None
) -> list[tuple[str, pyarrow.DataType]]:
    """The name and the type of each column except the kept ones, in order.

    Embeddings are lists of `embedding_dim` numbers each, or of any length if that is not known.
    """
    types = dict(TYPES)
    if not schema.confidence:
        types["boxes"] = pyarrow.list_(BOX_WITHOUT_CONFIDENCE)
    number = pyarrow.float16() if schema.float16 else pyarrow.float32()
    types[EMBEDDING] = pyarrow.list_(number, embedding_dim or -1)
    return [(name, types[name]) for name in schema.columns]


def make_table(
    rows: Sequence[Row],
    schema: RowSchema,
    types: Mapping[str, pyarrow.DataType] | None = None,
    embedding_dim: int | None = None,
) -> pyarrow.Table:
    """The rows as a table; kept columns have the given `types`, or else those of their values.

    Embeddings have `embedding_dim` values, by default as many as the first. Raises one of
    `column_types.MISMATCHES` if a value is not of its column's type.
    """
    columns = schema.columns
    if embedding_dim is None and EMBEDDING in columns:
        embedding_dim = embedding_dim_of(rows)
    arrays = [
        embedding_column([row[name] for row in rows], kind)
        if name == EMBEDDING
        else pyarrow.array([row[name] for row in rows], kind)
        for name, kind in schema_types(schema, embedding_dim)
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


def embedding_dim_of(rows: Iterable[Row]) -> int | None:
    """The number of values of the first embedding; None where no row has one."""
    found = (row[EMBEDDING] for row in rows if row.get(EMBEDDING) is not None)
    return next((len(embedding_values(value)) for value in found), None)


def embedding_column(values: Sequence[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    """Embeddings as lists of numbers or as text of their bytes, as a column of lists."""
    found = [None if value is None else embedding_values(value) for value in values]
    if not pyarrow.types.is_fixed_size_list(kind):
        return pyarrow.array(found, pyarrow.list_(pyarrow.float32())).cast(kind)
    dim = kind.list_size
    vectors = numpy.zeros((len(found), dim), numpy.float32)
    for row, value in enumerate(found):
        if value is not None:
            vectors[row] = value
    numbers = vectors.astype(kind.value_type.to_pandas_dtype()).ravel()
    is_null = pyarrow.array([value is None for value in found], pyarrow.bool_())
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(numbers), type=kind, mask=is_null)


def size_in_memory(value: Any) -> int:
    """The approximate size of a value in bytes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_in_memory, value.values()))
    return sum(map(size_in_memory, value)) if isinstance(value, list) else 8
