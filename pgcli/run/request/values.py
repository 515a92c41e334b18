"""Parsers for values of options that are no plain text or number; each raises ValueError."""

from __future__ import annotations

import re
from typing import Any, Literal

from pgcli.boxes import parse_region
from pgcli.records import Region
from pgcli.run.request.error_budget import ErrorBudget

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def plain_text(value: object) -> str:
    """A text or number as the command line would give it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be text or a number, not {value!r}")
    return str(value)


def device(value: object) -> str:
    """A device name. Loading the model checks whether the machine has the device."""
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        raise ValueError(f"must be auto, cpu, cuda, cuda:N or mps, not {value!r}")
    return value


def region(value: Any) -> Region:
    """A non-empty box: xmin, ymin, xmax and ymax in pixels."""
    try:
        return parse_region(value)
    except ValueError as problem:
        raise ValueError(f"{problem}, not {value!r}") from None


def max_errors(value: object) -> ErrorBudget:
    """The number of error rows that a run allows, `N`, or their share of all rows, `P%`."""
    text = plain_text(value)
    if text.endswith("%"):
        return ErrorBudget(max_share=percentage(text))
    return ErrorBudget(max_errors=plain_count(text))


def count_or_share(value: object) -> float:
    """A number of steps, `N`, or a share of all of them, `P%` or a fraction below 1."""
    if isinstance(value, float) and 0 <= value < 1:
        return value
    text = plain_text(value)
    return min(percentage(text), 0.999_999) if text.endswith("%") else float(plain_count(text))


def percentage(text: str) -> float:
    """A percentage, `P%`, as a number of 0 to 1."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise ValueError(f"must be a percentage from 0% to 100%, not {text!r}")
    return number / 100


def plain_count(text: str) -> int:
    """A whole number of 0 or more, for options that also accept a percentage."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 10**18:
        raise ValueError(f"must be a whole number or a percentage such as 5%, not {text!r}")
    return number
