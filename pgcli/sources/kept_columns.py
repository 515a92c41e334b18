"""The columns of manifests that the output repeats, under the same name or another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pgcli.records import COLUMNS, EXTRA_COLUMNS

if TYPE_CHECKING:
    import pyarrow

#: Stands for every column but the image and those whose names the output has already.
ALL = "*"
#: The type of each kept column; None where it follows from the values.
KeptTypes = Mapping[str, "pyarrow.DataType | None"]


class KeptColumn(NamedTuple):
    """A column of the manifest, and its name in the output."""

    source: str
    output: str


def named_columns(keep: Iterable[str]) -> tuple[KeptColumn, ...]:
    """The columns that are named: `a`, or `a:b` for one that the output calls b."""
    pairs = (name.partition(":") for name in keep if name != ALL)
    return tuple(KeptColumn(source, output or source) for source, _, output in pairs)


def expand(keep: Sequence[str], columns: Iterable[str], image: str) -> tuple[KeptColumn, ...]:
    """The columns to keep of a manifest with these `columns`, `image` being that of the images."""
    named = named_columns(keep)
    if ALL not in keep:
        return named
    taken = {image, *COLUMNS, *EXTRA_COLUMNS, *(column.output for column in named)}
    taken |= {column.source for column in named}
    return (*(KeptColumn(name, name) for name in columns if name not in taken), *named)


def common_types(parts: Iterable[KeptTypes]) -> dict[str, pyarrow.DataType | None]:
    """The type of each column over all manifests that have it, if they agree on one."""
    found: dict[str, pyarrow.DataType | None] = {}
    for types in parts:
        for name, kind in types.items():
            found[name] = common_type(found[name], kind) if name in found else kind
    return found


def common_type(
    one: pyarrow.DataType | None, other: pyarrow.DataType | None
) -> pyarrow.DataType | None:
    """The type that holds the values of both without a loss; None if there is none."""
    if one is None or other is None or one == other:
        return None if other is None else one
    import pyarrow

    integers = {pyarrow.types.is_integer(one), pyarrow.types.is_integer(other)}
    schemas = [pyarrow.schema([("", kind)]) for kind in (one, other)]
    try:
        common = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pyarrow.ArrowException:
        return None
    return common if len(integers) == 1 else None
