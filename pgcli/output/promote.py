"""A common type for a column with values of several types, or with other types in other files.

A kept column may have numbers in a million rows and a word in the next, or types that differ
between merged files. The types of the rows' own columns are in `schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow

from pgcli.arrow_types import (
    MISMATCHES,
    STRING,
    Kinds,
    add_kinds,
    as_text,
    can_cast,
    cast_column,
    common_type,
    json_column,
)
from pgcli.arrow_values import to_values
from pgcli.rows import json_safe

#: Starts a pass over tables with the same columns, perhaps of different types.
ReadTables = Callable[[], Iterable[pyarrow.Table]]


class Cell(NamedTuple):
    """A value of an Arrow column, with its type."""

    column: pyarrow.Array
    number: int

    @property
    def json(self) -> Any:
        """The value as in JSON."""
        return json_safe(to_values(self.column.slice(self.number, 1))[0])


def make_column(values: Sequence[Any]) -> pyarrow.Array:
    """The values, JSON values or cells, in their common type, or else as text.

    JSON objects become text, as their keys may differ.
    """
    if not any(isinstance(value, Cell) for value in values):
        return json_column(values) if values else pyarrow.nulls(0)
    parts = [
        value.column.slice(value.number, 1) if isinstance(value, Cell) else json_column([value])
        for value in values
    ]
    common = common_type(part.type for part in parts)
    try:
        return pyarrow.concat_arrays([cast_column(part, common) for part in parts])
    except MISMATCHES:
        return as_text(value.json if isinstance(value, Cell) else value for value in values)


def common_schema(tables: ReadTables) -> pyarrow.Schema:
    """The columns of all tables, in types that represent every value exactly.

    For example, integers and fractions become fractions if every integer fits one exactly. The
    tables are read once for their types, and once more for the values of columns with several.
    """
    kinds: Kinds = {}
    for table in tables():
        add_kinds(kinds, table.schema)
    common = {name: common_type(types) for name, types in kinds.items()}
    mixed = {name for name, types in kinds.items() if len(types) > 1}
    for table in tables() if mixed else ():
        for name in mixed & {*table.column_names}:
            if not can_cast(table[name], common[name]):
                common[name] = STRING
    return pyarrow.schema([*common.items()])
