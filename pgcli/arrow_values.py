"""Values of Arrow types as JSON has them, without a loss.

Times are ISO texts with as many digits as their unit has, bytes are base64, decimals are texts, and
maps are lists of pairs. NaN and infinity are floats in Python and texts in JSON.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

EPOCH = datetime(1970, 1, 1)
UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
OFFSET = re.compile(r".+?(Z|[+-]\d\d:\d\d(?::\d\d)?)?")
DAY_MS = 86_400_000


def to_values(array: pyarrow.Array) -> list[Any]:
    """The values of an array: plain ones, bytes, and floats that may be NaN."""
    from pyarrow import types

    kind = array.type
    if is_plain(kind):
        values: list[Any] = array.to_pylist()
        return values
    if types.is_dictionary(kind):
        return to_values(array.dictionary_decode())
    text = text_of(kind)
    if text is not None and not types.is_decimal(kind):
        width = "int32" if kind.bit_width == 32 else "int64"
        return [
            None if number is None else text(number) for number in array.view(width).to_pylist()
        ]
    return [scalar_value(scalar) for scalar in array]


def scalar_value(scalar: Any) -> Any:
    """The value of a scalar of any type."""
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
    text = text_of(kind)
    return scalar.as_py() if text is None else text(scalar.value)


def is_plain(kind: pyarrow.DataType) -> bool:
    """Whether pyarrow's own conversion of the type loses nothing."""
    from pyarrow import types

    if types.is_nested(kind):
        inner = [kind.field(number).type for number in range(kind.num_fields)]
        return not types.is_map(kind) and all(map(is_plain, inner))
    return not (types.is_temporal(kind) or types.is_decimal(kind) or types.is_dictionary(kind))


def text_of(kind: pyarrow.DataType) -> Callable[[int], str | int] | None:
    """What makes a text of a number of days, seconds and so on; None for other types."""
    from pyarrow import lib, types

    if types.is_date32(kind):
        return date_text
    if types.is_date64(kind):
        return lambda number: number if number % DAY_MS else date_text(number // DAY_MS)
    if types.is_timestamp(kind):
        zone = None if kind.tz is None else lib.string_to_tzinfo(kind.tz)
        return lambda number: timestamp_text(number, UNITS[kind.unit], zone)
    if types.is_time(kind):
        return lambda number: clock_text(number, UNITS[kind.unit])
    if types.is_duration(kind):
        return lambda number: duration_text(number, UNITS[kind.unit])
    return None


def date_text(days: int) -> str:
    """A day as ISO text, from the days since 1970."""
    try:
        return date.fromordinal(date(1970, 1, 1).toordinal() + days).isoformat()
    except (OverflowError, ValueError):
        import numpy

        return str(numpy.datetime64(days, "D"))


def timestamp_text(number: int, digits: int, zone: Any = None) -> str:
    """A moment as ISO text, with the fraction of a second as the unit has it."""
    seconds, fraction = divmod(number, 10**digits)
    try:
        moment = EPOCH + timedelta(seconds=seconds)
        if zone is not None:
            moment = moment.replace(tzinfo=UTC).astimezone(zone)
        text = moment.isoformat()
    except (OverflowError, ValueError):
        import numpy

        text = str(numpy.datetime64(seconds, "s")) + ("" if zone is None else "+00:00")
    if not fraction:
        return text
    offset = moment_offset(text)
    return f"{text.removesuffix(offset)}.{fraction:0{digits}}{offset}"


def moment_offset(text: str) -> str:
    """The offset from UTC at the end of an ISO text; empty where there is none."""
    match = OFFSET.fullmatch(text)
    return (match[1] or "") if match else ""


def clock_text(number: int, digits: int) -> str | int:
    """A time of day as ISO text; the number itself if it is not one."""
    seconds, fraction = divmod(number, 10**digits)
    if not 0 <= seconds < 86_400:
        return number
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:0{digits}}" if fraction else text


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
