"""Types of kept columns in Parquet: JSON values of any kind under one type for the whole file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import pyarrow

from pgcli.rows import json_text

Column: TypeAlias = "pyarrow.Array | pyarrow.ChunkedArray"
ColumnTypes: TypeAlias = "Mapping[str, pyarrow.DataType | None]"

BATCH_ROWS = 10_000
#: What pyarrow raises for values without a common type, or of a type that is too narrow.
MISMATCHES = (pyarrow.ArrowException, ValueError, TypeError, OverflowError)


def make_column(values: Sequence[Any]) -> pyarrow.Array:
    """The values under their common type, or as text if there is none."""
    try:
        array = pyarrow.array(values)
    except MISMATCHES:
        return as_text(values)
    return as_text(values) if contains_struct(array.type) else array


def as_text(values: Iterable[Any]) -> pyarrow.Array:
    """Strings as they are, null as null, and any other value as JSON."""
    return pyarrow.array(
        (v if v is None or isinstance(v, str) else json_text(v) for v in values), pyarrow.string()
    )


def contains_struct(kind: pyarrow.DataType) -> bool:
    """Whether the type is that of objects, or of lists of them, whose keys may differ."""
    while pyarrow.types.is_list(kind):
        kind = kind.value_type
    return bool(pyarrow.types.is_struct(kind))


def scan_types(
    names: Sequence[str], rows: Callable[[], Iterable[Mapping[str, Any]]]
) -> dict[str, pyarrow.DataType]:
    """The common type of each column, from one pass over all rows and, if needed, one for each."""
    if not names:
        return {}
    types: dict[str, set[pyarrow.DataType]] = {name: set() for name in names}
    for batch in batches(rows()):
        for name, known in types.items():
            known.add(make_column([row.get(name) for row in batch]).type)
    return {
        name: common_type(
            known, (make_column([row.get(name) for row in batch]) for batch in batches(rows()))
        )
        for name, known in types.items()
    }


def string_types(names: Sequence[str]) -> dict[str, pyarrow.DataType]:
    """Text for every column."""
    return dict.fromkeys(names, pyarrow.string())


def batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH_ROWS)):
        yield batch


def common_type(types: Iterable[pyarrow.DataType], arrays: Iterable[Column]) -> pyarrow.DataType:
    """The type that represents every value of all arrays exactly; text if there is none.

    For example, a column of integers and fractions has fractions if each integer is one exactly. A
    column of nulls is text. The arrays are read only if their `types` do not decide.
    """
    known = set(types) - {pyarrow.null()}
    if len(known) <= 1:
        return known.pop() if known else pyarrow.string()
    schemas = [pyarrow.schema([("", kind)]) for kind in known]
    try:
        common = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except MISMATCHES:
        return pyarrow.string()
    return common if all(is_exact(array, common) for array in arrays) else pyarrow.string()


def is_exact(array: Column, kind: pyarrow.DataType) -> bool:
    """Whether the values read back equal under this type."""
    try:
        return bool(convert(array, kind).to_pylist() == array.to_pylist())
    except MISMATCHES:
        return False


def cast_column(array: Column, kind: pyarrow.DataType) -> Column:
    """The array under the common type of its column."""
    if array.type == kind:
        return array
    return as_text(array.to_pylist()) if kind == pyarrow.string() else convert(array, kind)


def convert(array: Column, kind: pyarrow.DataType) -> Column:
    """The values under another type. `cast` makes invalid arrays of empty lists (pyarrow 26)."""
    return pyarrow.array(array.to_pylist(), kind)
