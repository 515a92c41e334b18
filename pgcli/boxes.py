"""Boxes and regions in pixels: areas, overlaps, parsing, and the filter by confidence."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgcli.parsing import GRID
from pgcli.records import CORNERS, Box, Region
from pgcli.rows import read_boxes, round6


def clipped(corners: Region, size: Sequence[float]) -> Region | None:
    """The corners within an image of `size`, width and height; None without an area there."""
    width, height = size
    left, right = (min(max(x, 0), width) for x in (corners[0], corners[2]))
    top, bottom = (min(max(y, 0), height) for y in (corners[1], corners[3]))
    return (left, top, right, bottom) if left < right and top < bottom else None


def iou(first: Box, second: Box) -> float:
    """The intersection over union of two boxes, 0 to 1; labels are ignored."""
    intersection = overlap(first.xmin, first.xmax, second.xmin, second.xmax) * overlap(
        first.ymin, first.ymax, second.ymin, second.ymax
    )
    union = box_area(first) + box_area(second) - intersection
    return intersection / union if union > 0 else 0.0


def overlap(low: float, high: float, other_low: float, other_high: float) -> float:
    """The length of the intersection of two intervals."""
    return max(0.0, min(high, other_high) - max(low, other_low))


def box_area(box: Box) -> float:
    """The area of a box, in square pixels."""
    return (box.xmax - box.xmin) * (box.ymax - box.ymin)


# --- regions

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


# --- the filter


@dataclass(frozen=True, slots=True)
class BoxFilter:
    """The boxes to keep: from `min_confidence` on, exact or as rows show numbers.

    Of boxes with the same label that overlap by more than `nms`, an intersection over union, only
    the most confident is kept (non-maximum suppression). Boxes without a confidence (drawn by hand)
    are kept.
    """

    min_confidence: float | None = None
    nms: float | None = None

    def __bool__(self) -> bool:
        return (self.min_confidence, self.nms) != (None, None)

    def kept(self, boxes: Sequence[Box]) -> list[int]:
        """The indices of the boxes to keep, in their order."""
        least = self.min_confidence
        kept = [number for number, box in enumerate(boxes) if reaches(box.confidence, least)]
        return kept if self.nms is None else without_duplicates(boxes, kept, self.nms)

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """A row of a result file with the boxes to keep, and their masks; unchanged if it has
        values that are not boxes.
        """
        boxes, masks = row.get("boxes"), row.get("masks")
        try:
            kept = self.kept(read_boxes(boxes)) if self else None
        except ValueError:  # readers of the boxes report the fault
            kept = None
        if boxes is None or kept is None:
            return row
        changed: dict[str, Any] = {"boxes": [boxes[index] for index in kept]}
        if isinstance(masks, list) and len(masks) == len(boxes):
            changed["masks"] = [masks[index] for index in kept]
        return {**row, **changed}


NO_FILTER = BoxFilter()


def reaches(number: float | None, threshold: float | None) -> bool:
    """Whether a number reaches its threshold; where one of them is missing, it does."""
    shown = round6(number)
    return number is None or shown is None or threshold is None or max(number, shown) >= threshold


def without_duplicates(boxes: Sequence[Box], indices: Sequence[int], threshold: float) -> list[int]:
    """The indices without boxes that overlap a more confident one of their label by more."""
    kept_of_label: defaultdict[str, list[Box]] = defaultdict(list)
    kept = []
    for index in sorted(indices, key=lambda index: -sort_confidence(boxes[index])):
        kept_boxes = kept_of_label[boxes[index].label]
        if not any(iou(boxes[index], kept_box) > threshold for kept_box in kept_boxes):
            kept_boxes.append(boxes[index])
            kept.append(index)
    return sorted(kept)


def sort_confidence(box: Box) -> float:
    """The confidence of a box, else its score, else infinity."""
    number = box.score if box.confidence is None else box.confidence
    return math.inf if number is None else number
