"""The areas of boxes and their intersection over union."""

from __future__ import annotations

from pgcli.records import Box


def iou(first: Box, second: Box) -> float:
    """The intersection over union of two boxes, 0 to 1; labels are ignored."""
    intersection = overlap(first.xmin, first.xmax, second.xmin, second.xmax) * overlap(
        first.ymin, first.ymax, second.ymin, second.ymax
    )
    union = area(first) + area(second) - intersection
    return intersection / union if union > 0 else 0.0


def overlap(low: float, high: float, other_low: float, other_high: float) -> float:
    """The length of the intersection of two intervals."""
    return max(0.0, min(high, other_high) - max(low, other_low))


def area(box: Box) -> float:
    """The area of a box, in square pixels."""
    return (box.xmax - box.xmin) * (box.ymax - box.ymin)
