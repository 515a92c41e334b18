"""One type for the values of a column that have several, and conversion; text if there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import pyarrow
from pyarrow import types

from pgcli.arrow_values import to_values
from pgcli.rows import json_safe, json_text

Column: TypeAlias = "pyarrow.Array | pyarrow.ChunkedArray"
#: The types of each column, in the order in which tables have them.
Kinds: TypeAlias = "dict[str, list[pyarrow.DataType]]"

STRING, NULL = pyarrow.string(), pyarrow.null()
#: What pyarrow raises for values without a common type, or of a type that is too narrow.
MISMATCHES = (pyarrow.ArrowException, ValueError, TypeError, OverflowError)


def common_type(kinds: Iterable[pyarrow.DataType], *, exact: bool = False) -> pyarrow.DataType:
    """The type that values of all these types are promoted to; text if there is none.

    Columns without a value are text too, and so is what holds integers and something else, if the
    type has to be `exact` whatever the values are.
    """
    known = [kind for kind in dict.fromkeys(kinds) if kind != NULL]
    if len(known) <= 1:
        return known[0] if known else STRING
    are_integers = {types.is_integer(leaf) for leaf in map(leaf_type, known) if leaf != NULL}
    if exact and len(are_integers) > 1:
        return STRING
    schemas = [pyarrow.schema([("", kind)]) for kind in known]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except MISMATCHES:
        return STRING


def add_kinds(kinds: Kinds, schema: pyarrow.Schema) -> None:
    """Add the types of the columns of a schema to those that others have."""
    for field in schema:
        known = kinds.setdefault(field.name, [])
        if field.type not in known:
            known.append(field.type)


def leaf_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type of the values in lists; of structs and others the type itself."""
    return leaf_type(kind.value_type) if types.is_list(kind) else kind


def json_column(values: Sequence[Any]) -> pyarrow.Array:
    """Values of JSON under their common type; as text if there is none.

    Objects are text, as their keys may differ.
    """
    try:
        column = pyarrow.array(values)
    except MISMATCHES:
        return as_text(values)
    return as_text(values) if types.is_struct(leaf_type(column.type)) else column


def as_text(values: Iterable[Any]) -> pyarrow.Array:
    """Strings as they are, null as null, and any other value as JSON."""
    safe = map(json_safe, values)
    texts = (v if v is None or isinstance(v, str) else json_text(v) for v in safe)
    return pyarrow.array(texts, STRING)


def can_cast(column: Column, kind: pyarrow.DataType) -> bool:
    """Whether each value of the column can have the type, unchanged."""
    try:
        cast_column(column, kind)
    except MISMATCHES:
        return False
    return True


def cast_column(column: Column, kind: pyarrow.DataType) -> Column:
    """The column under another type; raises one of MISMATCHES where a value would change."""
    if column.type == kind:
        return column
    if kind != STRING:
        return column.cast(kind)
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    return as_text(chain.from_iterable(map(to_values, chunks)))


def cast_table(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """The table with the columns of the schema; those that it lacks are null. Raises MISMATCHES."""
    if table.schema.equals(schema):
        return table
    names = {*table.column_names}
    columns = [
        cast_column(table[field.name], field.type)
        if field.name in names
        else pyarrow.nulls(len(table), field.type)
        for field in schema
    ]
    return pyarrow.Table.from_arrays(columns, schema=schema)
