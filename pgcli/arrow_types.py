"""A common type for the values of a column, and conversion to it; text if none fits."""

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
#: pyarrow's errors for values without a common type, or outside the range of their type.
MISMATCHES = (pyarrow.ArrowException, ValueError, TypeError, OverflowError)

TYPES_HINT = "convert the column; another -o starts anew, --overwrite writes all rows again"
MAX_SHOWN = 60  # characters of a value in a message
GUESSED_VALUES = 1000  # of a column whose type is guessed, at a time
#: Types that convert to each other, if the values fit, have the same of these in their names.
KINDS = ("string", "binary", "bool", "date", "time", "tz=", "duration", "list", "map", "struct")


def common_type(kinds: Iterable[pyarrow.DataType], *, exact: bool = False) -> pyarrow.DataType:
    """The type that all these types can be promoted to; text if none fits.

    Columns without a value are text too. With `exact`, for which no value may change, integers
    mixed with another type are text.
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
    """Add the column types of a schema to the known ones."""
    for field in schema:
        known = kinds.setdefault(field.name, [])
        if field.type not in known:
            known.append(field.type)


def leaf_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type of the values in lists; of structs and others the type itself."""
    return leaf_type(kind.value_type) if types.is_list(kind) else kind


def json_column(values: Sequence[Any]) -> pyarrow.Array:
    """JSON values under their common type; as text if none fits.

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
    return as_text(values_of(column))


class UnfitValue(ValueError):
    """A value that does not fit into the type that its column has elsewhere."""

    def __init__(self, name: str, column: Column, kind: pyarrow.DataType):
        rows = range(len(column))
        self.row = next(n for n in rows if not fits(column.slice(n, 1), kind))
        value = json_text(json_safe(values_of(column.slice(self.row, 1))[0]))
        shown = value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 1]}…"
        super().__init__(
            f"the column {name!r} has {shown}, of type {column.type}, and the files of the output "
            f"have {kind}"
        )


def fit_table(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """The table with the columns of the schema; missing columns are null. Raises UnfitValue."""
    for field in schema:
        if field.name in table.column_names and not fits(column := table[field.name], field.type):
            raise UnfitValue(field.name, column, field.type)
    return cast_table(table, schema)


def fits(column: Column, kind: pyarrow.DataType) -> bool:
    """Whether each value has the kind of the type and converts to it unchanged.

    Booleans and texts are not numbers; every value can be text.
    """
    if column.type == kind or kind == STRING or column.null_count == len(column):
        return True
    if any((name in str(column.type)) != (name in str(kind)) for name in KINDS):
        return False
    try:
        back = cast_column(column, kind).cast(column.type)
    except MISMATCHES:
        return False
    return bool(json_safe(values_of(back)) == json_safe(values_of(column)))


def values_of(column: Column) -> list[Any]:
    """The values of a column, as `to_values` has them."""
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    return list(chain.from_iterable(map(to_values, chunks)))


def cast_table(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """The table with the columns of the schema; missing columns are null. Raises MISMATCHES."""
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


class GuessedType:
    """The type that holds all values of a column of JSON exactly; text if none does.

    Integers and fractions are fractions if each integer is one exactly.
    """

    def __init__(self) -> None:
        self._kinds: set[pyarrow.DataType] = set()
        self._are_fractions = True
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        """Count one more value."""
        self._values.append(value)
        if len(self._values) == GUESSED_VALUES:
            self._guess()

    def kind(self) -> pyarrow.DataType:
        """The type of the values so far."""
        self._guess()
        if self._are_fractions and self._kinds == {pyarrow.int64(), pyarrow.float64()}:
            return pyarrow.float64()
        return common_type(self._kinds, exact=True)

    def _guess(self) -> None:
        column, self._values = json_column(self._values), []
        if column.type == pyarrow.int64():
            self._are_fractions &= can_cast(column, pyarrow.float64())
        self._kinds |= {column.type} - {NULL}
