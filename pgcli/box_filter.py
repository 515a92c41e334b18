"""Leaves out boxes: those below a threshold, and overlapping ones of the same label."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgcli.iou import iou
from pgcli.records import Box
from pgcli.regions import CORNERS
from pgcli.rows import round6


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

    def kept(self, boxes: Sequence[Box | None]) -> list[int]:
        """The indices of the boxes to keep, in their order; None is not a box and is kept."""
        least = self.min_confidence
        kept = [n for n, box in enumerate(boxes) if box is None or reaches(box.confidence, least)]
        return kept if self.nms is None else without_duplicates(boxes, kept, self.nms)

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """A row of a result file with the boxes to keep, and their masks."""
        boxes, masks = row.get("boxes"), row.get("masks")
        if not self or not isinstance(boxes, list):
            return row
        kept = self.kept([box_of(box) for box in boxes])
        changed: dict[str, Any] = {"boxes": [boxes[index] for index in kept]}
        if isinstance(masks, list) and len(masks) == len(boxes):
            changed["masks"] = [masks[index] for index in kept]
        return {**row, **changed}


NO_FILTER = BoxFilter()


def reaches(number: float | None, threshold: float | None) -> bool:
    """Whether a number reaches its threshold; where one of them is missing, it does."""
    shown = round6(number)
    return number is None or shown is None or threshold is None or max(number, shown) >= threshold


def without_duplicates(
    boxes: Sequence[Box | None], indices: Sequence[int], threshold: float
) -> list[int]:
    """The indices without boxes that overlap a more confident one of their label by more."""
    kept_of_label: defaultdict[str, list[Box]] = defaultdict(list)
    kept = []
    for index in sorted(indices, key=lambda index: -sort_confidence(boxes[index])):
        box = boxes[index]
        if box is not None:
            kept_boxes = kept_of_label[box.label]
            if any(iou(box, kept_box) > threshold for kept_box in kept_boxes):
                continue
            kept_boxes.append(box)
        kept.append(index)
    return sorted(kept)


def sort_confidence(box: Box | None) -> float:
    """The confidence of a box, its score where it has none, infinity without both."""
    if box is None:
        return math.inf
    number: float | None = box.score if box.confidence is None else box.confidence
    return math.inf if number is None else number


def box_of(value: Any) -> Box | None:
    """The box of a result row, which any tool may have written; None if the value is not one."""
    if not isinstance(value, Mapping) or not isinstance(value.get("label"), str):
        return None
    corners = [number(value.get(name)) for name in CORNERS]
    if None in corners:
        return None
    score, confidence = number(value.get("score")), number(value.get("confidence"))
    return Box(value["label"], *corners, score, confidence)  # type: ignore[arg-type, call-arg]


def number(value: Any) -> float | None:
    """The value as a number; None for anything else, for NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None
