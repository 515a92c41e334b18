"""Matches answered boxes with true boxes by the rules of pycocotools, for all rows at once.

Boxes of the same row and label are a group. In descending order of confidence, each answered box
takes the free true box with the highest IoU; ignored true boxes come last, and a crowd stays free.

Letters of shapes: D answered boxes, G true boxes, P pairs of both, T thresholds of the IoU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pgcli.boxes import box_area
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import blocks, offsets
from pgcli.records import Box

IOUS = np.linspace(0.5, 0.95, 10)
MAX_BOXES = 100  # of a group, the most confident
#: COCO's ranges of areas, in its order.
SIZES: Mapping[str, tuple[float, float]] = {
    "": (0, 1e10),
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, 1e10),
}
MAX_PAIRS = 1_000_000  # in memory at a time


@dataclass(frozen=True)
class BoxArrays:
    """Boxes of all rows: their rows, labels as numbers, sides (x, y, width, height) and areas.

    `confidence` is 1 for a box without one; `is_crowd` is False for answered boxes.
    """

    row: np.ndarray
    label: np.ndarray
    sides: np.ndarray
    area: np.ndarray
    confidence: np.ndarray
    is_crowd: np.ndarray

    @classmethod
    def of(cls, boxes: Sequence[tuple[int, Box, float, bool]], labels: Mapping[str, int]) -> Self:
        """The boxes, each with its row, its area, and whether it is a crowd."""
        own = [box for _, box, _, _ in boxes]
        corners = np.array([box.corners for box in own], np.float64).reshape(-1, 4)
        return cls(
            np.array([row for row, _, _, _ in boxes], np.int64),
            np.array([labels[box.label] for box in own], np.int64),
            np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]]),
            np.array([area for _, _, area, _ in boxes], np.float64),
            np.array([confidence_of(box) for box in own], np.float64),
            np.array([is_crowd for _, _, _, is_crowd in boxes], bool),
        )

    def select(self, numbers: np.ndarray) -> Self:
        """The boxes with these numbers."""
        return replace(self, **{name: values[numbers] for name, values in vars(self).items()})

    def is_outside(self, size: str) -> np.ndarray:
        """Whether the area of each box is outside a range of SIZES; False for NaN."""
        low, high = SIZES[size]
        outside: np.ndarray = (self.area < low) | (self.area > high)
        return outside


@dataclass(frozen=True)
class Matches:
    """The boxes of a range of areas, matched: answered boxes by label and descending confidence.

    `rank_D` counts more confident boxes of the group. `is_true_DT` says whether a box matches at
    each threshold. A box counts as neither right nor wrong if `is_counted_DT` is false: it is in a
    crowd, or it or its match has another size. `true_row_G` and `true_label_G` describe the
    true boxes that count.
    """

    labels: int
    row_D: np.ndarray
    label_D: np.ndarray
    rank_D: np.ndarray
    is_true_DT: np.ndarray
    is_counted_DT: np.ndarray
    true_row_G: np.ndarray
    true_label_G: np.ndarray

    def by_image(self, image_N: np.ndarray) -> Self:
        """The boxes with the image of their row in place of the row; without boxes of image -1."""
        if np.array_equal(image_N, np.arange(len(image_N))):
            return self
        kept, true = image_N[self.row_D] >= 0, image_N[self.true_row_G] >= 0
        return replace(
            self,
            row_D=image_N[self.row_D[kept]],
            label_D=self.label_D[kept],
            rank_D=self.rank_D[kept],
            is_true_DT=self.is_true_DT[kept],
            is_counted_DT=self.is_counted_DT[kept],
            true_row_G=image_N[self.true_row_G[true]],
            true_label_G=self.true_label_G[true],
        )


def match_boxes(rows: Sequence[JoinedRow]) -> dict[str, Matches]:
    """The matched boxes of the rows for each of SIZES.

    If the area of a true box is NaN, no true box counts for a size: that one might have it.
    """
    labels: dict[str, int] = {}
    answered: list[tuple[int, Box, float, bool]] = []
    true: list[tuple[int, Box, float, bool]] = []
    for number, row in enumerate(rows):
        objects = (row.truth.objects if row.truth else None) or ()
        true += [(number, o.box, o.object_area, False) for o in objects if not o.is_crowd]
        true += [(number, o.box, box_area(o.box), True) for o in objects if o.is_crowd]
        answered += [(number, box, box_area(box), False) for box in row.boxes]
    for _, box, _, _ in (*true, *answered):
        labels.setdefault(box.label, len(labels))
    true_G, answered_D = BoxArrays.of(true, labels), BoxArrays.of(answered, labels)
    group_G, group_D = (boxes.row * len(labels) + boxes.label for boxes in (true_G, answered_D))
    order_G, order_D = np.argsort(group_G, kind="stable"), by_group(group_D, answered_D.confidence)
    true_G, answered_D = true_G.select(order_G), answered_D.select(order_D)
    group_G, group_D = group_G[order_G], group_D[order_D]
    pairs = near_pairs(answered_D, true_G, group_D, group_G)
    rank_D = np.arange(len(group_D)) - np.searchsorted(group_D, group_D)
    by_label = by_group(answered_D.label, answered_D.confidence)
    has_areas = not np.isnan(true_G.area).any()
    matches = {}
    for size in SIZES:
        is_ignored_G = true_G.is_crowd | true_G.is_outside(size)
        is_true_DT, is_ignored_DT = pairs.match(is_ignored_G, true_G.is_crowd)
        is_ignored_DT |= ~is_true_DT & answered_D.is_outside(size)[:, None]
        is_wanted_G = ~is_ignored_G & (has_areas or not size)
        matches[size] = Matches(
            max(1, len(labels)),
            answered_D.row[by_label],
            answered_D.label[by_label],
            rank_D[by_label],
            is_true_DT[by_label],
            ~is_ignored_DT[by_label],
            true_G.row[is_wanted_G],
            true_G.label[is_wanted_G],
        )
    return matches


def by_group(group_D: np.ndarray, confidence_D: np.ndarray) -> np.ndarray:
    """The order of boxes by group, then by descending confidence, then as they are."""
    return np.lexsort((-confidence_D, group_D))


@dataclass(frozen=True)
class Pairs:
    """The pairs of an answered and a true box whose IoU reaches the lowest threshold.

    `key_P` orders the pairs by IoU, and equal ones by their true box. `round_P` counts the boxes
    with pairs in the same group that are more confident.
    """

    boxes: int
    answered_P: np.ndarray
    true_P: np.ndarray
    iou_P: np.ndarray
    round_P: np.ndarray

    def match(
        self, is_ignored_G: np.ndarray, is_crowd_G: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether each answered box matches, and whether its match is ignored, (D, T) each."""
        pairs, by_key_P = len(self.iou_P), np.lexsort((self.true_P, self.iou_P))
        key_P = np.empty(pairs, np.int64)
        # a true box that counts comes before an ignored one, whatever its IoU
        key_P[by_key_P] = np.arange(pairs)
        key_P += np.where(is_ignored_G[self.true_P], 0, pairs)
        is_free_GT = np.ones((len(is_ignored_G), len(IOUS)), bool)
        is_true_DT = np.zeros((self.boxes, len(IOUS)), bool)
        is_ignored_DT = np.zeros_like(is_true_DT)
        for own in self._rounds():
            answered, true = self.answered_P[own], self.true_P[own]
            is_possible_PT = (self.iou_P[own, None] >= IOUS) & is_free_GT[true]
            starts = np.flatnonzero(np.diff(answered, prepend=-1))
            best_BT = np.maximum.reduceat(np.where(is_possible_PT, key_P[own, None], -1), starts)
            boxes, thresholds = np.nonzero(best_BT >= 0)
            key = best_BT[boxes, thresholds]
            match = self.true_P[by_key_P[key % pairs]]
            is_true_DT[answered[starts][boxes], thresholds] = True
            is_ignored_DT[answered[starts][boxes], thresholds] = key < pairs
            is_free_GT[match, thresholds] = is_crowd_G[match]
        return is_true_DT, is_ignored_DT

    def _rounds(self) -> Iterator[np.ndarray]:
        """The numbers of the pairs of each round: one box of every group that has boxes left."""
        order = np.argsort(self.round_P, kind="stable")
        limits = np.flatnonzero(np.diff(self.round_P[order], prepend=-1))
        yield from np.split(order, limits[1:]) if len(order) else ()


def near_pairs(
    answered: BoxArrays, true: BoxArrays, group_D: np.ndarray, group_G: np.ndarray
) -> Pairs:
    """The pairs of boxes in the same group, from boxes in the order of their groups."""
    first_D = np.searchsorted(group_G, group_D, side="left")
    count_D = np.searchsorted(group_G, group_D, side="right") - first_D
    near: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for block in blocks(offsets(count_D), MAX_PAIRS):
        counts = count_D[block]
        answered_P = np.repeat(np.arange(block.start, block.stop), counts)
        within_P = np.arange(len(answered_P)) - np.repeat(np.cumsum(counts) - counts, counts)
        true_P = first_D[answered_P] + within_P
        iou_P = ious(answered.sides[answered_P], true.sides[true_P], true.is_crowd[true_P])
        is_near_P = iou_P >= IOUS[0]
        near.append((answered_P[is_near_P], true_P[is_near_P], iou_P[is_near_P]))
    empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    answered_P, true_P, iou_P = (
        np.concatenate(arrays) for arrays in zip(empty, *near, strict=True)
    )
    boxes, box_P = np.unique(answered_P, return_inverse=True)
    round_B = np.arange(len(boxes)) - np.searchsorted(group_D[boxes], group_D[boxes])
    return Pairs(len(group_D), answered_P, true_P, iou_P, round_B[box_P])


def ious(answered_P4: np.ndarray, true_P4: np.ndarray, is_crowd_P: np.ndarray) -> np.ndarray:
    """The IoU of each pair, as in pycocotools; with a crowd, the share inside of it."""
    low = np.maximum(answered_P4[:, :2], true_P4[:, :2])
    high = np.minimum(answered_P4[:, :2] + answered_P4[:, 2:], true_P4[:, :2] + true_P4[:, 2:])
    shared_P = np.maximum(high - low, 0).prod(axis=1)
    area_P, true_area_P = answered_P4[:, 2:].prod(axis=1), true_P4[:, 2:].prod(axis=1)
    union_P = np.where(is_crowd_P, area_P, area_P + true_area_P - shared_P)
    iou_P: np.ndarray = np.divide(
        shared_P, union_P, out=np.zeros_like(shared_P), where=shared_P > 0
    )
    return iou_P


def confidence_of(box: Box) -> float:
    """The confidence of a box, else its score, else 1."""
    number = box.score if box.confidence is None else box.confidence
    return 1.0 if number is None else number
