"""Types of kept columns: guessed from values of JSON, joined over files, and converted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from pgcli.arrow_values import to_values
from pgcli.inputs.rows import to_json_value
from pgcli.rows import json_text

#: What pyarrow raises for values without a common type, or of a type that is too narrow.
MISMATCHES = (pa.ArrowException, ValueError, TypeError, OverflowError)
#: Values whose type is guessed at once.
BATCH = 1000


class GuessedType:
    """The type that holds all values of a column of JSON exactly; text if there is none.

    Objects are text, as their keys may differ, and so is a column of nulls. Integers and fractions
    are fractions if each integer is one exactly.
    """

    def __init__(self) -> None:
        self._kind = pa.null()
        self._are_fractions = True  # whether each integer is a fraction exactly
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        """Count one more value."""
        self._values.append(value)
        if len(self._values) == BATCH:
            self._guess()

    def kind(self) -> pa.DataType:
        """The type of the values so far."""
        self._guess()
        return pa.string() if types.is_null(self._kind) else self._kind

    def _guess(self) -> None:
        values, self._values = self._values, []
        if types.is_string(self._kind) and all(isinstance(v, str | None) for v in values):
            return
        try:
            array = pa.array([to_json_value(value, exact=True) for value in values])
            if types.is_integer(array.type):
                self._are_fractions &= is_exact(array, pa.float64())
        except MISMATCHES:
            self._kind = pa.string()
            return
        kind = pa.string() if any(map(types.is_struct, leaves(array.type))) else array.type
        if self._are_fractions and {self._kind, kind} == {pa.int64(), pa.float64()}:
            self._kind = pa.float64()
        else:
            self._kind = joined(self._kind, kind)


def is_exact(array: pa.Array, kind: pa.DataType) -> bool:
    """Whether each value can be changed into the type without a loss."""
    try:
        array.cast(kind)
    except MISMATCHES:
        return False
    return True


def joined(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """The type that holds the values of both without a loss; text if there is none."""
    if first == second:
        return first
    kinds = {leaf for kind in (first, second) for leaf in leaves(kind) if not types.is_null(leaf)}
    if any(map(types.is_integer, kinds)) and not all(map(types.is_integer, kinds)):
        return pa.string()
    schemas = [pa.schema([("", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def joined_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The columns of all, in order of appearance, each of the type that holds those of all."""
    found: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            known = found.get(field.name)
            found[field.name] = field.type if known is None else joined(known, field.type)
    return pa.schema(list(found.items()))


def leaves(kind: pa.DataType) -> list[pa.DataType]:
    """The types of the values in lists; of structs and others the type itself."""
    return leaves(kind.value_type) if types.is_list(kind) else [kind]


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values of JSON in this type; as text: strings as they are, any other value as JSON."""
    plain = [to_json_value(value, exact=True) for value in values]
    if not types.is_string(kind):
        return pa.array(plain, kind)
    return pa.array([v if isinstance(v, str | None) else json_text(v) for v in plain], kind)


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in another type, which holds its values; to text as `column_of`."""
    if column.type == kind:
        return column
    if types.is_string(kind) and not types.is_large_string(column.type):
        chunks = [column_of(to_values(chunk), kind) for chunk in column.chunks]
        return pa.chunked_array(chunks, kind)
    return column.cast(kind)
