"""Values of foreign rows as the page takes them: text that hides nothing, numbers that are some."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pgcli.printable import encodable, printable

Row = Mapping[str, Any]


def text(value: object) -> str | None:
    """Text with its lines, and every character in it that steers or hides spelled out."""
    if value is None:
        return None
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    lines = encodable(value).replace("\r\n", "\n").replace("\t", " ").split("\n")
    return "\n".join(map(printable, lines))


def line(value: object) -> str:
    """The same on one line; what is not there is empty."""
    return "" if value is None else printable(encodable(str(value)))


def number(value: object, digits: int = 6) -> float | int | None:
    """A finite number of so many significant digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def box(value: object) -> tuple[str, list[float]] | None:
    """A box's label, and its corners and score; None for what is no box."""
    if not isinstance(value, Mapping):
        return None
    corners = [number(value.get(name)) for name in ("xmin", "ymin", "xmax", "ymax")]
    found = [corner for corner in corners if corner is not None]
    if len(found) < 4:
        return None
    return line(value.get("label")), [*found, number(value.get("score")) or 0.0]


def entries(value: object) -> Sequence[Any]:
    """A list's entries; none for anything else."""
    return value if isinstance(value, list | tuple) else ()
