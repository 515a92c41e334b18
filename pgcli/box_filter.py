"""Drops boxes below a confidence threshold, and duplicates of the same label."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgcli.boxes import iou
from pgcli.records import Box
from pgcli.rows import read_boxes, round6


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
