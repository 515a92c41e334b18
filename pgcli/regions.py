"""Parses regions of images: four numbers, text with four numbers, or a box."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pgcli.records import Region

CORNERS = ("xmin", "ymin", "xmax", "ymax")


def parse_region(value: Any) -> Region:
    """xmin, ymin, xmax, ymax in pixels, from a list, `1,2,30,40`, or a mapping with these keys.

    Parts outside an image are cut off later. Raises ValueError, with the reason, for other values.
    """
    if isinstance(value, Mapping):
        value = [value.get(corner) for corner in CORNERS]
    corners = value.split(",") if isinstance(value, str) else value
    try:
        if any(isinstance(corner, bool) for corner in corners):
            raise TypeError("a truth value is not a number")
        left, top, right, bottom = map(float, corners)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("not four numbers of pixels: xmin,ymin,xmax,ymax") from None
    if not math.isfinite(left + top + right + bottom):
        raise ValueError("not four numbers of pixels that are finite")
    if left >= right or top >= bottom:
        raise ValueError("empty: xmin must be below xmax, ymin below ymax")
    return left, top, right, bottom
