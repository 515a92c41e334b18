"""Boxes as corners in pixels: their areas, their overlaps, and the part within an image."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.records import Box, Region

#: The names of the corners of a box, and of a region.
CORNERS = ("xmin", "ymin", "xmax", "ymax")


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
