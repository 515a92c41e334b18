"""Arrow values as JSON has them, the type of a column's values, and casts that change no value.

Times are ISO texts with as many digits as their unit has, bytes are base64, decimals are texts, and
maps are lists of pairs. NaN and infinity are floats in Python and null in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import pyarrow
from pyarrow import date32, date64, float64, int64, types

from pgcli.rows import json_safe, json_text

Column: TypeAlias = "pyarrow.Array | pyarrow.ChunkedArray"

STRING, NULL = pyarrow.string(), pyarrow.null()
#: pyarrow's errors for values without a common type, or outside the range of their type.
MISMATCHES = (pyarrow.ArrowException, ValueError, TypeError, OverflowError)
UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
#: A time as pyarrow writes it, without a fraction of zero: date, time, offset from UTC.
TIME = re.compile(r"(?:(\S+) )?(\S+?)(?:\.0+)?(?:(Z)|([+-]\d\d)(\d\d))?")
#: pyarrow's text for a time outside its calendar.
OUT_OF_RANGE = re.compile(r"<value out of range: (-?\d+)>")


class LossyCast(ValueError):
    """A column with values that another type cannot hold unchanged."""

    def __init__(self, kind: pyarrow.DataType, wanted: pyarrow.DataType):
        super().__init__(f"values of type {kind} that do not fit {wanted}")


def cast_column(column: Column, kind: pyarrow.DataType) -> Column:
    """The column under another type. Every value can be text. Raises LossyCast."""
    if column.type == kind:
        return column
    if kind == STRING:
        return as_text(values_of(column))
    if column.null_count == len(column):
        return pyarrow.nulls(len(column), kind)
    own, wanted = plain_type(column.type), plain_type(kind)
    try:
        if own == wanted:
            return column.cast(kind)
        if common_type((own, wanted)) != STRING:  # pyarrow also casts texts to numbers
            cast, values = column.cast(kind), json_safe(values_of(column))
            if values == json_safe(values_of(cast)):
                return cast
            if values == json_safe(values_of(cast.cast(column.type))):  # 1.5 and 1.500
                return cast
    except pyarrow.ArrowException as problem:
        raise LossyCast(column.type, kind) from problem
    raise LossyCast(column.type, kind)


def common_type(kinds: Iterable[pyarrow.DataType]) -> pyarrow.DataType:
    """The type that pyarrow promotes these types to; text if there is none."""
    schemas = [pyarrow.schema([("", kind)]) for kind in (NULL, *kinds)]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pyarrow.ArrowException:
        return STRING


def json_column(values: Sequence[Any]) -> pyarrow.Array:
    """JSON values under the type that pyarrow gives them; as text if it gives none.

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


class JsonType:
    """The type of a column's JSON values that are added a few at a time; text if none fits all."""

    def __init__(self) -> None:
        self._kind = NULL

    @property
    def kind(self) -> pyarrow.DataType:
        """The type of the values so far."""
        return STRING if self._kind == NULL else self._kind

    def add(self, values: Sequence[Any]) -> None:
        """Add more values."""
        kinds = {self._kind, json_column(values).type}
        leaves = {leaf_type(kind) for kind in kinds} - {NULL}
        is_mixed = len(leaves) > 1 and kinds != {int64(), float64()}
        self._kind = STRING if is_mixed else common_type(kinds)


def plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type without dictionaries and views, so that its size is the size of its values."""
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pyarrow.large_string() if types.is_string_view(kind) else pyarrow.large_binary()
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(
            kind.value_field.with_type(plain_type(kind.value_type)), kind.list_size
        )
    if types.is_list(kind) or types.is_large_list(kind):
        make = pyarrow.list_ if types.is_list(kind) else pyarrow.large_list
        return make(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def leaf_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type of the values in lists; of structs and others the type itself."""
    return leaf_type(kind.value_type) if types.is_list(kind) else kind


# --- values


def values_of(column: Column) -> list[Any]:
    """The values of a column, as `to_values` has them."""
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    return list(chain.from_iterable(map(to_values, chunks)))


def to_values(array: pyarrow.Array) -> list[Any]:
    """The values of an array: plain ones, bytes, and floats that may be NaN.

    Times in a zone that this machine does not know are in UTC.
    """
    kind = array.type
    if is_lossless(kind):
        values: list[Any] = array.to_pylist()
        return values
    if types.is_dictionary(kind):
        return to_values(array.dictionary_decode())
    if types.is_duration(kind):
        numbers, digits = array.cast(int64()).to_pylist(), UNITS[kind.unit]
        return [None if number is None else duration_text(number, digits) for number in numbers]
    if types.is_temporal(kind):
        unit = "days" if kind == date32() else "ms" if kind == date64() else kind.unit
        try:
            texts = array.cast(STRING).to_pylist()
        except pyarrow.ArrowInvalid:
            texts = array.cast(pyarrow.timestamp(unit, "UTC")).cast(STRING).to_pylist()
        return [None if text is None else iso_text(text, unit) for text in texts]
    return [scalar_value(scalar) for scalar in array]


def scalar_value(scalar: Any) -> Any:
    """The value of a scalar of any type."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if types.is_struct(kind):
        return {field.name: scalar_value(scalar[n]) for n, field in enumerate(kind)}
    if types.is_map(kind):
        return [[scalar_value(pair[0]), scalar_value(pair[1])] for pair in scalar.values]
    if types.is_nested(kind):
        return to_values(scalar.values)
    if types.is_decimal(kind):
        return str(scalar.as_py())
    if types.is_dictionary(kind):
        return scalar_value(scalar.value)
    return to_values(pyarrow.array([scalar], kind))[0]


def is_lossless(kind: pyarrow.DataType) -> bool:
    """Whether pyarrow's own conversion of the type loses nothing."""
    if types.is_nested(kind):
        inner = [kind.field(number).type for number in range(kind.num_fields)]
        return not types.is_map(kind) and all(map(is_lossless, inner))
    return not (types.is_temporal(kind) or types.is_decimal(kind) or types.is_dictionary(kind))


def iso_text(text: str, unit: str) -> str:
    """A date, a moment or a time of day as ISO text, from pyarrow's text.

    For a number outside the calendar, a sentence with the number and its unit.
    """
    match = TIME.fullmatch(text)
    if match is None:
        return OUT_OF_RANGE.sub(rf"\1 {unit} is no date or time of the calendar", text)
    date, time, utc, hours, minutes = match.groups()
    offset = "+00:00" if utc else f"{hours}:{minutes}" if hours else ""
    return f"{date}T{time}{offset}" if date else time


def duration_text(number: int, digits: int) -> str:
    """A span of time as ISO text in seconds."""
    seconds, fraction = divmod(abs(number), 10**digits)
    text = f"{'-' * (number < 0)}PT{seconds}"
    return f"{text}.{fraction:0{digits}}S" if fraction else f"{text}S"
