"""Converts manifest values to what JSON and Arrow can hold."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from pgcli.arrow_values import to_json


def to_json_value(value: Any, *, exact: bool = False) -> Any:
    """The value without integers beyond 64 bits, and without NaN and bytes unless it is `exact`."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case float():
            return value if exact or math.isfinite(value) else None
        case Mapping():
            return {str(key): to_json_value(one, exact=exact) for key, one in value.items()}
        case list() | tuple():
            return [to_json_value(one, exact=exact) for one in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return value if exact else to_json(value)
    return str(value)
