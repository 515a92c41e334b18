"""Checks that the types of Parquet columns can be converted to Python values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pgcli.errors import ManifestError
from pgcli.printable import MAX_DEPTH
from pgcli.sources.manifest_file import FileLocation


def check_types(fields: Iterable[pa.Field], location: FileLocation) -> None:
    """Raise ManifestError for a column that is nested too deeply or has an unknown time zone."""
    for field in fields:
        if depth(field.type) > MAX_DEPTH:
            raise ManifestError(f"{location}: a column is nested too deeply")
        for type_ in leaf_types(field.type):
            if pa.types.is_timestamp(type_) and not is_known_zone(type_):
                raise ManifestError(
                    f"{location}: the column {field.name!r} has an unknown time zone {type_.tz!r}",
                    hint="write its times in UTC or without a zone, or leave the column out",
                )


def depth(type_: pa.DataType) -> int:
    """The number of levels of lists and structs."""
    return 1 + max(map(depth, inner_types(type_)), default=0) if pa.types.is_nested(type_) else 0


def leaf_types(type_: pa.DataType) -> Iterator[pa.DataType]:
    """The types of the values in lists, structs and dictionaries."""
    inner = inner_types(type_)
    if pa.types.is_dictionary(type_):
        inner = [type_.value_type]
    if not inner:
        yield type_
    for one in inner:
        yield from leaf_types(one)


def inner_types(type_: pa.DataType) -> list[pa.DataType]:
    """The types of a list's values or a struct's fields."""
    return [type_.field(n).type for n in range(type_.num_fields)]


def is_known_zone(type_: pa.TimestampType) -> bool:
    """Whether times of this type can be converted.

    For an unknown zone pyarrow raises ArrowInvalid, or pytz's KeyError where pytz is installed.
    """
    try:
        pa.scalar(0, type_).as_py()
    except (pa.ArrowException, LookupError, ValueError):
        return False
    return True
