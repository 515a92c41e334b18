"""Values of Arrow types as JSON has them, without a loss.

Times are ISO texts with as many digits as their unit has, bytes are base64, decimals are texts, and
maps are lists of pairs. NaN and infinity are floats in Python and texts in JSON.
"""

from __future__ import annotations

import base64
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
#: A time as pyarrow writes it, without a fraction of zero: date, time, offset from UTC.
TIME = re.compile(r"(?:(\S+) )?(\S+?)(?:\.0+)?(?:(Z)|([+-]\d\d)(\d\d))?")
#: pyarrow's text for a time outside its calendar.
OUT_OF_RANGE = re.compile(r"<value out of range: (-?\d+)>")


def to_values(array: pyarrow.Array) -> list[Any]:
    """The values of an array: plain ones, bytes, and floats that may be NaN.

    Raises ArrowInvalid for a time zone that this machine does not know.
    """
    from pyarrow import date32, date64, int64, string, types

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
        texts = array.cast(string()).to_pylist()
        return [None if text is None else iso_text(text, unit) for text in texts]
    return [scalar_value(scalar) for scalar in array]


def scalar_value(scalar: Any) -> Any:
    """The value of a scalar of any type."""
    import pyarrow
    from pyarrow import types

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
    from pyarrow import types

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


def to_json(value: Any) -> Any:
    """The value as JSON can hold it exactly: bytes as base64, NaN and infinity as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value
