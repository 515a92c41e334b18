"""Kept columns in Parquet: JSON values of any kind, under one type for the whole file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import pyarrow

from pgcli.rows import json_text

Column: TypeAlias = "pyarrow.Array | pyarrow.ChunkedArray"
Kinds: TypeAlias = "Mapping[str, pyarrow.DataType]"

# what pyarrow raises for values that share no type, or one too narrow for them
MISFITS = (pyarrow.ArrowException, ValueError, TypeError, OverflowError)


def column(values: Sequence[Any]) -> pyarrow.Array:
    """The values under the type that holds them all, as text where there is none."""
    try:
        array = pyarrow.array(values)
    except MISFITS:
        return as_text(values)
    return as_text(values) if holds_objects(array.type) else array


def as_text(values: Iterable[Any]) -> pyarrow.Array:
    """Text stays as it is, everything else is JSON; null stays null."""
    return pyarrow.array(map(text, values), pyarrow.string())


def text(value: Any) -> str | None:
    """One value in a column of several kinds, or of objects."""
    return value if value is None or isinstance(value, str) else json_text(value)


def holds_objects(kind: pyarrow.DataType) -> bool:
    """Whether values of this type are objects, or lists of them, each with keys of its own."""
    while pyarrow.types.is_list(kind):
        kind = kind.value_type
    return bool(pyarrow.types.is_struct(kind))


def kinds_of(
    names: Sequence[str], rows: Callable[[], Iterable[Mapping[str, Any]]]
) -> dict[str, pyarrow.DataType]:
    """The type of each column over all rows, gone through once for each column and once more."""
    if not names:
        return {}
    kinds: dict[str, set[pyarrow.DataType]] = {name: set() for name in names}
    for some in batches(rows()):
        for name, known in kinds.items():
            known.add(column([row.get(name) for row in some]).type)
    return {
        name: settled(known, (column([r.get(name) for r in some]) for some in batches(rows())))
        for name, known in kinds.items()
    }


def as_text_all(names: Sequence[str]) -> dict[str, pyarrow.DataType]:
    """Text for each column."""
    return dict.fromkeys(names, pyarrow.string())


def batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The rows, ten thousand at a time."""
    rest = iter(rows)
    while some := list(islice(rest, 10_000)):
        yield some


def settled(kinds: Iterable[pyarrow.DataType], arrays: Iterable[Column]) -> pyarrow.DataType:
    """The type under which every value of all these arrays comes back equal, text if there is none.

    So whole numbers beside fractions are fractions (and spelled so, should a word come later) as
    long as each is one exactly. A column of nulls is text. The arrays are read only where `kinds`,
    their types, leave a doubt.
    """
    known = set(kinds) - {pyarrow.null()}
    if len(known) <= 1:
        return known.pop() if known else pyarrow.string()
    schemas = [pyarrow.schema([("", kind)]) for kind in known]
    try:
        common = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except MISFITS:
        return pyarrow.string()
    return common if all(keeps(array, common) for array in arrays) else pyarrow.string()


def keeps(array: Column, kind: pyarrow.DataType) -> bool:
    """Whether the values come back equal from this type."""
    try:
        return bool(under(array, kind).to_pylist() == array.to_pylist())
    except MISFITS:
        return False


def fitted(array: Column, kind: pyarrow.DataType) -> Column:
    """The array under the type that `settled` found for its column."""
    if array.type == kind:
        return array
    return as_text(array.to_pylist()) if kind == pyarrow.string() else under(array, kind)


def under(array: Column, kind: pyarrow.DataType) -> Column:
    """The values anew under a type: `cast` makes invalid arrays from empty lists (pyarrow 26)."""
    return pyarrow.array(array.to_pylist(), kind)
