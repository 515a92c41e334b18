"""Converts manifest values to what JSON and Arrow can hold."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any


def to_json_value(value: Any) -> Any:
    """The value without NaN and integers beyond 64 bits; dates become text, bytes hexadecimal."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else str(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): to_json_value(inner) for key, inner in value.items()}
        case list() | tuple():
            return [to_json_value(inner) for inner in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return value.hex()
    return str(value)
