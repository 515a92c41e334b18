"""One type for a column whose values, or whose parts, have several; text where there is none.

Kept columns may have numbers in a million rows and a word in the next, or other types in each file
that is merged. The columns of the rows themselves have their types in `schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy
import pyarrow

from pgcli.arrow_values import to_values
from pgcli.rows import json_safe, json_text

Column: TypeAlias = "pyarrow.Array | pyarrow.ChunkedArray"
#: Starts a pass through tables that have the same columns, maybe of other types.
ReadTables = Callable[[], Iterable[pyarrow.Table]]
#: The types of each column, in the order in which tables have them.
Kinds: TypeAlias = "dict[str, list[pyarrow.DataType]]"

STRING, NULL = pyarrow.string(), pyarrow.null()
#: What pyarrow raises for values without a common type, or of a type that is too narrow.
MISMATCHES = (pyarrow.ArrowException, ValueError, TypeError, OverflowError)


class Cell(NamedTuple):
    """A value of an Arrow column, in its own type."""

    column: pyarrow.Array
    number: int

    @property
    def json(self) -> Any:
        """The value as JSON has it."""
        return json_safe(to_values(self.column.slice(self.number, 1))[0])


def make_column(values: Sequence[Any]) -> pyarrow.Array:
    """The values, JSON values or cells, under their common type, or as text if there is none.

    Objects of JSON are text, as their keys may differ.
    """
    places: dict[int, list[int]] = {}  # of the values from each column
    for place, value in enumerate(values):
        places.setdefault(id(value.column) if isinstance(value, Cell) else 0, []).append(place)
    parts = [_part([values[place] for place in found]) for found in places.values()]
    if len(parts) <= 1:
        return parts[0] if parts else pyarrow.nulls(0)
    common = common_type(part.type for part in parts)
    try:
        joined = pyarrow.concat_arrays([cast_column(part, common) for part in parts])
    except MISMATCHES:
        return as_text(value.json if isinstance(value, Cell) else value for value in values)
    return joined.take(numpy.argsort([*chain.from_iterable(places.values())]))


def _part(values: Sequence[Any]) -> pyarrow.Array:
    """Values that are all cells of one column, or all of JSON."""
    if isinstance(values[0], Cell):
        return values[0].column.take(pyarrow.array([cell.number for cell in values]))
    try:
        column = pyarrow.array(values)
    except MISMATCHES:
        return as_text(values)
    kind = column.type
    while pyarrow.types.is_list(kind):
        kind = kind.value_type
    return as_text(values) if pyarrow.types.is_struct(kind) else column


def as_text(values: Iterable[Any]) -> pyarrow.Array:
    """Strings as they are, null as null, and any other value as JSON."""
    safe = map(json_safe, values)
    texts = (v if v is None or isinstance(v, str) else json_text(v) for v in safe)
    return pyarrow.array(texts, STRING)


def common_type(kinds: Iterable[pyarrow.DataType]) -> pyarrow.DataType:
    """The type that values of all these types are promoted to; text if there is none.

    Columns without a value are text too.
    """
    known = [kind for kind in dict.fromkeys(kinds) if kind != NULL]
    if len(known) <= 1:
        return known[0] if known else STRING
    schemas = [pyarrow.schema([("", kind)]) for kind in known]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except MISMATCHES:
        return STRING


def cast_column(column: Column, kind: pyarrow.DataType) -> Column:
    """The column under another type; raises one of MISMATCHES where a value would change."""
    if column.type == kind:
        return column
    if kind != STRING:
        return column.cast(kind)
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    return as_text(chain.from_iterable(map(to_values, chunks)))


def add_kinds(kinds: Kinds, table: pyarrow.Table) -> None:
    """Add the types of the table's columns to those that other tables have."""
    for field in table.schema:
        found = kinds.setdefault(field.name, [])
        if field.type not in found:
            found.append(field.type)


def common_schema(tables: ReadTables) -> pyarrow.Schema:
    """The columns of all tables under types that hold every value of theirs exactly.

    For example, integers and fractions are fractions if each integer is one exactly. The tables are
    read once for their types, and once more for the values of columns that have several.
    """
    kinds: Kinds = {}
    for table in tables():
        add_kinds(kinds, table)
    common = {name: common_type(found) for name, found in kinds.items()}
    mixed = {name for name, found in kinds.items() if len(found) > 1}
    for table in tables() if mixed else ():
        for name in mixed & {*table.column_names}:
            try:
                cast_column(table[name], common[name])
            except MISMATCHES:
                common[name] = STRING
    return pyarrow.schema([*common.items()])


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
