"""Regions of images: parsed from text or numbers, and written as location tokens in prompts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pgcli.boxes import CORNERS, clipped
from pgcli.parsing import GRID
from pgcli.records import Region

LOCATIONS = re.compile(r" ?(?:<loc[0-9]{4}>){4}$")


def parse_region(value: Any) -> Region:
    """xmin, ymin, xmax, ymax in pixels, from a list, `1,2,30,40`, the JSON list of a CSV file, or a
    mapping with these keys.

    Parts outside an image are cut off later. Raises ValueError, with the reason, for other values.
    """
    if isinstance(value, Mapping):
        value = [value.get(corner) for corner in CORNERS]
    corners = value.strip(" []").split(",") if isinstance(value, str) else value
    try:
        if any(isinstance(corner, bool) for corner in corners):
            raise TypeError("a truth value is not a number")
        left, top, right, bottom = map(float, corners)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be four numbers in pixels, xmin,ymin,xmax,ymax") from None
    if not math.isfinite(left + top + right + bottom):
        raise ValueError("must be four finite numbers")
    if left >= right or top >= bottom:
        raise ValueError("must have xmin below xmax and ymin below ymax")
    return left, top, right, bottom


def location_values(region: Region, width: int, height: int) -> tuple[int, ...] | None:
    """The location values (0..1023) of ymin, xmin, ymax, xmax of the region within an image.

    None if the region is outside the image.
    """
    inside = clipped(region, (width, height))
    if inside is None:
        return None
    left, top, right, bottom = inside
    sides = ((top, height), (left, width), (bottom, height), (right, width))
    return tuple(round(corner / side * GRID) for corner, side in sides)


def with_locations(prompt: str, values: Sequence[int]) -> str:
    """The prompt as rows show it: followed by the location tokens of its region."""
    return f"{prompt} {''.join(f'<loc{value:04d}>' for value in values)}".strip()


def prompt_with_region(prompt: str, region: Any, width: Any, height: Any) -> str:
    """The prompt as result rows show it: with the location tokens of the region at its end.

    It is unchanged if it has location tokens already, or if the region is outside the image.
    """
    if split_locations(prompt)[1]:
        return prompt
    try:
        values = location_values(parse_region(region), int(width), int(height))
    except (TypeError, ValueError, OverflowError):
        return prompt
    return prompt if values is None else with_locations(prompt, values)


def split_locations(prompt: str) -> tuple[str, tuple[int, ...]]:
    """A prompt as rows show it, and the location values of its region; `with_locations` reversed.

    A prompt without a region at its end is unchanged.
    """
    match = LOCATIONS.search(prompt)
    values = tuple(map(int, re.findall("[0-9]{4}", match[0]))) if match else ()
    if match is None or max(values) > GRID:
        return prompt, ()
    return prompt[: match.start()], values


def region_of(values: Sequence[int], width: int, height: int) -> Region | None:
    """The region with these location values in an image; None without values."""
    if not values:
        return None
    top, left, bottom, right = (value / GRID for value in values)
    return left * width, top * height, right * width, bottom * height
