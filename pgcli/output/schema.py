"""The Parquet columns of rows, their types, and the conversion of rows to tables."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import pyarrow

from pgcli.answer_schema import values_type
from pgcli.arrow import STRING, cast_column, common_type, json_column, to_values
from pgcli.rows import BOX_NUMBERS, RowSchema, embedding_values, has_vectors, json_safe

Row = Mapping[str, Any]

FLOAT, INT = pyarrow.float64(), pyarrow.int32()
CATEGORY = pyarrow.dictionary(INT, STRING)  # few values, many rows
BOX = pyarrow.struct([("label", STRING), *((name, FLOAT) for name in BOX_NUMBERS)])
RLE = pyarrow.struct([("size", pyarrow.list_(INT)), ("counts", STRING)])
MASK = pyarrow.struct([("codes", pyarrow.list_(pyarrow.int16())), ("rle", RLE)])
CHOICE = pyarrow.struct([("text", STRING), ("logprob", FLOAT), ("probability", FLOAT)])
TEXT_SCORE = pyarrow.struct(
    [("text", STRING), ("cosine", FLOAT), ("score", FLOAT), ("probability", FLOAT)]
)
LABEL = pyarrow.struct([("label", STRING), ("probability", FLOAT)])
#: A column with a type that depends on the model, and the setting with its list length.
EMBEDDING, EMBEDDING_DIM = "embedding", "embedding_dim"
#: The column whose type is that of the JSON Schema of answers.
VALUES = "values"
#: The types of the columns; embeddings may also be in float16.
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
    "text": STRING,
    EMBEDDING: pyarrow.list_(pyarrow.float32()),
    "scores": pyarrow.list_(TEXT_SCORE),
    "labels": pyarrow.list_(LABEL),
    "truncated": pyarrow.bool_(),
}


def line_type(name: str) -> pyarrow.DataType:
    """The type of a column in JSON lines; other tools write integers as floats, as beside NaN."""
    kind = TYPES.get(name, STRING)
    return {CATEGORY: STRING, INT: FLOAT}.get(kind, kind)


def rows_table(
    rows: Sequence[Row],
    schema: RowSchema,
    kept: pyarrow.Table | None = None,
    embedding_dim: int | None = None,
) -> pyarrow.Table:
    """The rows as a table, with nulls for columns that a row lacks.

    `kept` has the kept columns of exactly these rows in their own types. Without it their values
    are in the rows, as JSON values or as cells, and get a common type. Embeddings have
    `embedding_dim` values, by default as many as the first. Raises one of MISMATCHES if a value
    does not fit its column's type.
    """
    columns = [_column(rows, name, schema, embedding_dim) for name in schema.columns]
    for name in schema.keep:
        if kept is not None:
            columns.append(kept[name])
        else:
            columns.append(inferred_column([row.get(name) for row in rows]))
    return pyarrow.Table.from_arrays(columns, names=[*schema.columns, *schema.keep])


class Cell(NamedTuple):
    """A value of an Arrow column, with its type."""

    column: pyarrow.Array
    number: int

    @property
    def json(self) -> Any:
        """The value as in JSON."""
        return json_safe(to_values(self.column.slice(self.number, 1))[0])


def inferred_column(values: Sequence[Any]) -> pyarrow.Array:
    """JSON values or cells in their common type, or else as text. Raises LossyCast."""
    if not any(isinstance(value, Cell) for value in values):
        return json_column(values) if values else pyarrow.nulls(0)
    parts = [
        value.column.slice(value.number, 1) if isinstance(value, Cell) else json_column([value])
        for value in values
    ]
    common = common_type(dict.fromkeys(part.type for part in parts))
    return pyarrow.concat_arrays([cast_column(part, common) for part in parts])


def embedding_dim_of(rows: Iterable[Row]) -> int | None:
    """The size of the first embedding or vector of a page; None without embeddings."""
    value = next((row[EMBEDDING] for row in rows if row.get(EMBEDDING) is not None), None)
    if isinstance(value, str) and has_vectors(value):
        return int(value.partition(":")[0])
    return None if value is None else len(embedding_values(value))


def _column(rows: Sequence[Row], name: str, schema: RowSchema, dim: int | None) -> pyarrow.Array:
    values = [row.get(name) for row in rows]
    if name == VALUES:
        if any(isinstance(value, Cell) for value in values):
            return inferred_column(values)
        return pyarrow.array(values, schema.values and values_type(schema.values))
    if name != EMBEDDING:
        return pyarrow.array(values, TYPES[name])
    number = pyarrow.float16() if schema.float16 else pyarrow.float32()
    dim = embedding_dim_of(rows) if dim is None else dim
    if dim is None:
        return pyarrow.nulls(len(values), pyarrow.list_(number))
    if schema.pages or any(map(has_vectors, values)):
        return page_column(values, dim)
    return embedding_column(values, pyarrow.list_(number, dim))


def embedding_column(values: Sequence[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    """Embeddings, as lists of numbers or text of their bytes, as a column of fixed-size lists."""
    null = bytes(4 * kind.list_size)
    vectors = [null if value is None else embedding_values(value).tobytes() for value in values]
    if any(len(vector) != len(null) for vector in vectors):
        raise ValueError("embeddings have different numbers of values")
    numbers = numpy.frombuffer(b"".join(vectors), numpy.float32)
    numbers = numbers.astype(kind.value_type.to_pandas_dtype(), copy=False)
    is_null = pyarrow.array([value is None for value in values], pyarrow.bool_())
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(numbers), type=kind, mask=is_null)


def page_text(vector_VE: numpy.ndarray) -> str:
    """The vectors of a page as text: their size, and their bytes in float16. See `has_vectors`."""
    return f"{vector_VE.shape[1]}:{base64.b64encode(vector_VE.astype('<f2').tobytes()).decode()}"


def page_column(values: Sequence[str | None], size: int) -> pyarrow.Array:
    """The texts of pages' vectors as a column of lists of vectors of this size, in float16."""
    data = [b"" if v is None else base64.b64decode(v.partition(":")[2]) for v in values]
    numbers = pyarrow.array(numpy.frombuffer(b"".join(data), "<f2"))
    # the names of the fields are those that a Parquet file returns
    kind = pyarrow.list_(pyarrow.field("element", pyarrow.float16()), size)
    vectors = pyarrow.FixedSizeListArray.from_arrays(numbers, type=kind)
    ends = numpy.cumsum([0, *(len(vectors_of_page) // (2 * size) for vectors_of_page in data)])
    is_null = pyarrow.array([value is None for value in values], pyarrow.bool_())
    kind = pyarrow.list_(pyarrow.field("element", kind))
    offsets = pyarrow.array(ends, pyarrow.int32())
    return pyarrow.ListArray.from_arrays(offsets, vectors, type=kind, mask=is_null)


def is_page_type(kind: pyarrow.DataType) -> bool:
    """Whether a column of this type has the vectors of pages."""
    types = pyarrow.types
    return bool(types.is_list(kind) and types.is_fixed_size_list(kind.value_type))


def page_texts(column: pyarrow.Array) -> list[str | None]:
    """The texts of the vectors in a column of `page_column`; lists of Python numbers would take a
    hundred times the memory.
    """
    size = column.type.value_type.list_size
    pages = (page.values for page in column)
    return [
        None if page is None else page_text(page.flatten().to_numpy(False).reshape(-1, size))
        for page in pages
    ]


def rows_of_table(table: pyarrow.Table) -> list[Row]:
    """The rows of a table, with the vectors of pages as text."""
    number = table.schema.get_field_index(EMBEDDING)
    if number >= 0 and is_page_type(table.schema.field(number).type):
        texts = pyarrow.array(page_texts(table[EMBEDDING]), STRING)
        table = table.set_column(number, EMBEDDING, texts)
    rows: list[Row] = table.to_pylist()
    return rows
