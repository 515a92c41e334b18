"""Cleans the values of result rows, which anybody may have written, for the gallery page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pgcli.printable import encodable, printable


def clean_text(value: object) -> str | None:
    """The value as text with its line breaks, with control characters escaped."""
    if value is None:
        return None
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    if is_clean(value):
        return value
    lines = encodable(value).replace("\r\n", "\n").replace("\t", " ").split("\n")
    return "\n".join(map(printable, lines))


def clean(value: Any) -> Any:
    """A value of a row with its texts and numbers cleaned, at any depth."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return clean_number(value)
    if not isinstance(value, Mapping | list | tuple):
        return clean_text(value)
    if is_clean_value(value):
        return value
    if isinstance(value, Mapping):
        return {clean_line(name): clean(inner) for name, inner in value.items()}
    return [clean(inner) for inner in value]


def clean_line(value: object) -> str:
    """The value as one line with control characters escaped; None is empty."""
    text = "" if value is None else str(value)
    return text if is_clean(text) else printable(encodable(text))


def is_clean(text: str) -> bool:
    """Whether the text needs no cleaning: true for most, and fast."""
    return text.isascii() and text.isprintable()


def is_clean_value(value: object) -> bool:
    """Whether a list or an object needs no cleaning at any depth: true for most, and fast."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # a value that JSON does not have
        return False
    return "\\" not in text and "\x7f" not in text


def clean_number(value: object, digits: int = 6) -> float | int | None:
    """A finite number rounded to significant digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def as_list(value: object) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()
