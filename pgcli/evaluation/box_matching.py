"""Matches boxes with true ones: at one threshold, and for all of COCO's as pycocotools does.

Letters of shapes: N rows, D boxes found, T thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.iou import area, iou, overlap
from pgcli.records import Box

THRESHOLDS = np.linspace(0.5, 0.95, 10)
MAX_BOXES = 100  # found of a label in a row, the most confident
#: The least and the largest area of true boxes that count, in square pixels.
SIZES: Mapping[str, tuple[float, float]] = {
    "": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}


@dataclass(frozen=True)
class FoundBoxes:
    """The boxes of a label that were found, in descending order of confidence, and the true ones.

    `rank_D` is the number of more confident ones of the label in the same row. `is_true_DT` says
    whether a box is a true one at each threshold. It is neither right nor wrong where
    `is_counted_DT` is false: in a crowd, or where the box, or the one it matches, has another size.
    """

    row_D: np.ndarray
    rank_D: np.ndarray
    is_true_DT: np.ndarray
    is_counted_DT: np.ndarray
    true_N: np.ndarray

    def select(self, is_chosen_N: np.ndarray) -> FoundBoxes:
        """The boxes of some of the rows."""
        number_N = np.cumsum(is_chosen_N) - 1
        is_kept_D = is_chosen_N[self.row_D]
        return FoundBoxes(
            number_N[self.row_D[is_kept_D]],
            self.rank_D[is_kept_D],
            self.is_true_DT[is_kept_D],
            self.is_counted_DT[is_kept_D],
            self.true_N[is_chosen_N],
        )


@dataclass
class LabelBoxes:
    """The boxes of a label in a row: the true ones and their areas, crowds, and those found."""

    true: list[Box]
    areas: list[float]
    crowds: list[Box]
    found: list[Box]


def found_boxes(rows: Sequence[JoinedRow]) -> dict[str, list[FoundBoxes]]:
    """The boxes of each label that has true ones, for each of SIZES.

    There are none for a size where the area of a true box is NaN: it might be of that size.
    """
    by_label: dict[str, dict[int, LabelBoxes]] = {}
    for number, row in enumerate(rows):
        for box, of_box in true_areas(row):
            of_row(by_label, box.label, number).true.append(box)
            of_row(by_label, box.label, number).areas.append(of_box)
        for box in row.truth.crowds if row.truth is not None else ():
            of_row(by_label, box.label, number).crowds.append(box)
        for box in row.boxes:
            of_row(by_label, box.label, number).found.append(box)
    sized: dict[str, list[FoundBoxes]] = {size: [] for size in SIZES}
    for of_label in by_label.values():
        if any(one.true for one in of_label.values()):
            for size, found in found_of_label(of_label, len(rows)).items():
                sized[size].append(found)
    if any(math.isnan(of_box) for row in rows for _, of_box in true_areas(row)):
        sized = {size: [] if size else labels for size, labels in sized.items()}
    return sized


def true_areas(row: JoinedRow) -> Iterator[tuple[Box, float]]:
    """The true boxes of a row and their areas."""
    if row.truth is not None and row.truth.boxes is not None:
        yield from zip(row.truth.boxes, row.truth.box_areas, strict=True)


def of_row(by_label: dict[str, dict[int, LabelBoxes]], label: str, number: int) -> LabelBoxes:
    """The boxes of a label in a row, to be filled."""
    return by_label.setdefault(label, {}).setdefault(number, LabelBoxes([], [], [], []))


def found_of_label(rows: Mapping[int, LabelBoxes], count: int) -> dict[str, FoundBoxes]:
    """The boxes of a label by row, for each of SIZES."""
    true_N = {size: np.zeros(count) for size in SIZES}
    numbers: list[int] = []
    ranks: list[int] = []
    scores: list[float] = []
    matches: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {size: [] for size in SIZES}
    for number in sorted(rows):
        one = rows[number]
        best = sorted(one.found, key=lambda box: -confidence_of(box))[:MAX_BOXES]
        numbers += [number] * len(best)
        ranks += range(len(best))
        scores += [confidence_of(box) for box in best]
        ious = [[iou(box, other) for other in one.true] for box in best]
        shares = [[share_in(box, crowd) for crowd in one.crowds] for box in best]
        for size, (low, high) in SIZES.items():
            is_sized = [math.isnan(of_box) or low <= of_box <= high for of_box in one.areas]
            true_N[size][number] = sum(is_sized)
            is_own_size = [low <= area(box) <= high for box in best]
            matches[size] += match(ious, shares, is_sized, is_own_size)
    order = np.argsort(-np.array(scores, np.float64), kind="stable")
    shape = (len(numbers), len(THRESHOLDS))
    row_D, rank_D = (np.array(one, np.int64)[order] for one in (numbers, ranks))
    return {
        size: FoundBoxes(
            row_D,
            rank_D,
            np.array([is_true for is_true, _ in found], bool).reshape(shape)[order],
            np.array([is_counted for _, is_counted in found], bool).reshape(shape)[order],
            true_N[size],
        )
        for size, found in matches.items()
    }


def match(
    ious: Sequence[Sequence[float]],
    shares: Sequence[Sequence[float]],
    is_sized: Sequence[bool],
    is_own_size: Sequence[bool],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Whether each box found is a true one at each threshold, and whether it counts there.

    In their order, boxes take the free true box with the highest IoU, the last of equal ones: first
    among those of the size, then among the others and crowds, where they do not count. `shares` are
    those of the boxes in crowds, which any number of boxes can take.
    """
    is_free = np.ones((len(is_sized), len(THRESHOLDS)), bool)
    found = []
    for of_box, of_crowds, is_own in zip(ious, shares, is_own_size, strict=True):
        near = [(value, is_sized[number], number) for number, value in enumerate(of_box)]
        near += [(value, False, len(of_box) + number) for number, value in enumerate(of_crowds)]
        near = [one for one in near if one[0] >= THRESHOLDS[0]]
        is_true, is_matched = (np.zeros(len(THRESHOLDS), bool) for _ in range(2))
        for value, is_wanted, number in sorted(near, key=order_of, reverse=True):
            taken = ~is_matched & (value >= THRESHOLDS)
            if number < len(of_box):
                taken &= is_free[number]
                is_free[number] &= ~taken
            is_matched |= taken
            is_true |= taken & is_wanted
        found.append((is_true, is_true | ~is_matched & is_own))
    return found


def order_of(one: tuple[float, bool, int]) -> tuple[bool, float, int]:
    """What true boxes are taken by: those of the size first, then by IoU, then the last."""
    value, is_wanted, number = one
    return is_wanted, value, number


def share_in(box: Box, crowd: Box) -> float:
    """The share of the box that is in the crowd."""
    shared = overlap(box.xmin, box.xmax, crowd.xmin, crowd.xmax)
    shared *= overlap(box.ymin, box.ymax, crowd.ymin, crowd.ymax)
    return shared / area(box) if area(box) else 0.0


def confidence_of(box: Box) -> float:
    """The confidence of a box, or its score where it has none."""
    return box.score if box.confidence is None else box.confidence


def is_right(found: Sequence[Box], true: Sequence[Box], threshold: float = 0.5) -> list[bool]:
    """Whether each box found is a true one of its label, each at most once.

    Boxes are matched in descending order of confidence, each to the free one with the highest IoU.
    """
    free, right = list(true), [False] * len(found)
    for number in sorted(range(len(found)), key=lambda number: -confidence_of(found[number])):
        box = found[number]
        same = [other for other in free if other.label == box.label]
        best = max(same, key=lambda other: iou(box, other), default=None)
        if best is not None and iou(box, best) >= threshold:
            free.remove(best)
            right[number] = True
    return right
