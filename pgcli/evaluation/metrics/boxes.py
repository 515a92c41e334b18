"""Metrics of boxes and masks: COCO's average precision and recall, overlaps of single boxes, masks.

Answered boxes are matched with true boxes by the rules of pycocotools, for all rows at once. Boxes
of the same row and label are a group. In descending order of confidence, each answered box takes
the free true box with the highest IoU; ignored true boxes come last, and a crowd stays free. Boxes
are matched once: a resample only weights the matches of each image, so that the values equal
pycocotools on the repeated images.

Letters of shapes: N rows, U images, R resamples, L labels, T thresholds of the IoU, D answered
boxes, G true boxes (in `label_precisions` groups of a label and a threshold), P pairs of both (of a
box and a threshold at which it does not count), K pairs that match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from pgcli.boxes import box_area, iou
from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import RESAMPLES, Measure, blocks, mean, offsets, ratio
from pgcli.evaluation.metrics import Metric, has_pixels
from pgcli.records import Box, Rle
from pgcli.rle import mask_area, union

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


RECALLS = np.linspace(0.0, 1.0, 101)
MAX_WORK = 50_000_000  # boxes times resamples times thresholds, which takes some seconds
MIN_RESAMPLES = 100

#: The value of each label, from the weights of the images and the counts of true boxes.
LabelValues = Callable[[np.ndarray, np.ndarray], np.ndarray]


def measure_ap(rows: Sequence[JoinedRow]) -> list[Measure]:
    """COCO's AP and AR, and precision, recall and F1 at an IoU of 0.5; crowds do not count."""
    matches = match_boxes(rows)
    every = matches[""]
    is_counted_D = every.is_counted_DT[:, 0]
    is_right_D = every.is_true_DT[:, 0] & is_counted_D
    right_N = np.bincount(every.row_D[is_right_D], minlength=len(rows))
    boxes_N = np.bincount(every.row_D[is_counted_D], minlength=len(rows))
    true_N = np.array([len(row.true_boxes) for row in rows])
    return [
        *average_precisions(matches),
        ratio("precision@0.5", right_N, boxes_N),
        ratio("recall@0.5", right_N, true_N),
        ratio("f1@0.5", 2 * right_N, boxes_N + true_N),
    ]


AP = Metric("boxes", measure_ap)


@dataclass(frozen=True)
class MeanOverLabels:
    """The mean over labels with true boxes; `work` is the cost of a resample.

    Precision `is_biased`: images that a resample repeats raise it at many recalls.
    """

    name: str
    matches: Matches
    of_labels: Callable[[Matches], LabelValues]
    work: int
    is_biased: bool = False

    @property
    def max_resamples(self) -> int:
        return min(RESAMPLES, max(MIN_RESAMPLES, MAX_WORK // max(1, self.work)))

    def by_image(self, image_N: np.ndarray, images: int) -> Self:
        return replace(self, matches=self.matches.by_image(image_N))

    def values(self, weights_RU: np.ndarray) -> np.ndarray:
        values = self.of_labels(self.matches)
        row, label = self.matches.true_row_G, self.matches.true_label_G
        means = []
        for weight_U in weights_RU:
            true_L = np.bincount(label, weight_U[row], self.matches.labels)
            value_L = values(weight_U, np.maximum(true_L, 1))[true_L > 0]
            means.append(value_L.mean() if len(value_L) else math.nan)
        return np.array(means)


def average_precisions(matches: dict[str, Matches]) -> list[MeanOverLabels]:
    """COCO's twelve values: AP and AR over the thresholds, at some of them, and by size.

    As in COCO, boxes whose label has no true box do not count, and neither do all but the most
    confident boxes of a label in a row.
    """
    every = matches[""]
    true_L = np.bincount(every.true_label_G, minlength=every.labels)
    is_labelled_D = (true_L[every.label_D] > 0) & (every.rank_D < MAX_BOXES)
    work = int(is_labelled_D.sum() + 300 * np.count_nonzero(true_L))

    def measure(name: str, size: str, values: Callable[..., LabelValues], n: int) -> MeanOverLabels:
        return MeanOverLabels(name, matches[size], values, work * n, name.startswith("ap"))

    at = {name: slice(column, column + 1) for name, column in (("ap50", 0), ("ap75", 5))}
    sizes = [*SIZES][1:]
    return [
        measure("ap", "", label_precisions, len(IOUS)),
        *(measure(name, "", partial(label_precisions, ious=at[name]), 1) for name in at),
        *(measure(f"ap_{size}", size, label_precisions, len(IOUS)) for size in sizes),
        *(measure(f"ar@{n}", "", partial(label_recalls, max_boxes=n), 1) for n in (1, 10, 100)),
        *(measure(f"ar_{size}", size, label_recalls, 1) for size in sizes),
    ]


def label_precisions(matches: Matches, ious: slice = slice(None)) -> LabelValues:
    """The function for the mean precision of each label at 101 recalls, over some thresholds."""
    labels, is_counted_DT = matches.labels, matches.is_counted_DT[:, ious]
    kept = np.flatnonzero(is_counted_DT.any(axis=1) & (matches.rank_D < MAX_BOXES))
    is_counted_TD, is_true_TD = is_counted_DT[kept].T, matches.is_true_DT[kept][:, ious].T
    row_D, label_D = matches.row_D[kept], matches.label_D[kept]
    groups = len(is_counted_TD) * labels  # of the boxes of a label, one for each threshold
    first_box_G = np.tile(np.searchsorted(label_D, np.arange(labels)), len(is_counted_TD))
    threshold_K, box_K = np.nonzero(is_true_TD & is_counted_TD)
    group_K, row_K = threshold_K * labels + label_D[box_K], row_D[box_K]
    limit_G = np.searchsorted(group_K, np.arange(groups + 1))  # where the pairs of groups begin
    threshold_P, box_P = np.nonzero(~is_counted_TD)
    row_P, key_P = row_D[box_P], threshold_P * len(kept) + box_P
    uncounted_K = np.searchsorted(key_P, threshold_K * len(kept) + box_K)
    uncounted_G = np.searchsorted(threshold_P * labels + label_D[box_P], np.arange(groups))

    def values(weight_U: np.ndarray, true_L: np.ndarray) -> np.ndarray:
        right_K, sum_D, sum_P = (running_sum(weight_U[row]) for row in (row_K, row_D, row_P))
        before_G = sum_D[first_box_G] - sum_P[uncounted_G]
        counted_K = sum_D[box_K + 1] - sum_P[uncounted_K] - before_G[group_K]
        own_K = right_K[1:] - right_K[limit_G[group_K]]
        precision_K = np.append(own_K / (counted_K + np.spacing(1)), 0)
        # the first pair of each group that reaches each recall
        needed_GR = right_K[limit_G[:-1], None] + np.tile(
            boxes_for_recalls(true_L), (groups // labels, 1)
        )
        first_GR = np.searchsorted(right_K[1:], needed_GR).clip(
            limit_G[:-1, None], limit_G[1:, None]
        )
        best_GR = np.maximum.reduceat(precision_K, first_GR.ravel()).reshape(first_GR.shape)
        best_GR[first_GR == limit_G[1:, None]] = 0
        # the highest precision at this recall or a higher one
        envelope_GR = np.maximum.accumulate(best_GR[:, ::-1], axis=1)
        mean_L: np.ndarray = envelope_GR.mean(axis=1).reshape(-1, labels).mean(axis=0)
        return mean_L

    return values


def running_sum(values: np.ndarray) -> np.ndarray:
    """The sum of the values before each one, and of all: one more than the values."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def boxes_for_recalls(true_L: np.ndarray) -> np.ndarray:
    """The least number of right boxes for each label and recall, (L, 101).

    As in pycocotools, a recall is the rounded quotient of two counts.
    """
    least_LR = np.floor(true_L[:, None] * RECALLS) - 1
    for _ in range(2):
        least_LR += least_LR / true_L[:, None] < RECALLS
    return least_LR


def label_recalls(matches: Matches, max_boxes: int = MAX_BOXES) -> LabelValues:
    """The function for the mean recall of each label, with at most `max_boxes` boxes per row."""
    is_right_DT = matches.is_true_DT & matches.is_counted_DT
    share_D = is_right_DT.mean(axis=1) * (matches.rank_D < max_boxes)
    right = np.flatnonzero(share_D)
    row, label, share = matches.row_D[right], matches.label_D[right], share_D[right]

    def values(weight_U: np.ndarray, true_L: np.ndarray) -> np.ndarray:
        recall_L: np.ndarray = np.bincount(label, weight_U[row] * share, matches.labels) / true_L
        return recall_L

    return values


IOU = 0.5


def measure_box_accuracy(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose first box has an IoU of at least 0.5 with the true one (RefCOCO).

    Raises UsageError if a row has several true boxes.
    """
    if any(len(row.true_boxes) > 1 for row in rows):
        raise UsageError(
            "--metric acc@0.5 compares one box per row, and a row of the truth has several",
            hint="--metric ap is for any number of boxes",
        )
    hits = [
        bool(row.boxes and row.true_boxes) and iou(row.boxes[0], row.true_boxes[0]) >= IOU
        for row in rows
    ]
    return [mean("acc@0.5", hits)]


def measure_miou(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean over rows of the IoU of their masks; a row without a valid mask counts as 0.

    Raises UsageError if the rows have boxes but no masks.
    """
    if not has_pixels(rows) and any(row.boxes for row in rows):
        raise UsageError(
            "--metric miou needs masks, and the rows have codes only",
            hint="pgcli segment --mask-decoder FILE decodes them",
        )
    return [mean("miou", [row_iou(row) for row in rows])]


BOX_ACCURACY = Metric("boxes", measure_box_accuracy)
MIOU = Metric("masks", measure_miou)


def row_iou(row: JoinedRow) -> float:
    """The mean over labels of the IoU of their masks; 1 if truth and answer both have no mask."""
    if row.truth is None or row.row is None:
        return 0.0
    true = masks_by_label(row.true_boxes, row.truth.masks or ())
    masks = masks_by_label(row.boxes, row.masks)
    if not true:
        return float(not masks)
    return sum(mask_iou(masks.get(label, []), own) for label, own in true.items()) / len(true)


def masks_by_label(boxes: Iterable[Box], masks: Iterable[Rle | None]) -> dict[str, list[Rle]]:
    """The masks of each label."""
    labelled: dict[str, list[Rle]] = {}
    for box, mask in zip(boxes, masks, strict=False):
        if mask is not None:
            labelled.setdefault(box.label, []).append(mask)
    return labelled


def mask_iou(first: Sequence[Rle], second: Sequence[Rle]) -> float:
    """The IoU of the unions of two lists of masks; 0 if the masks have different sizes."""
    if not first or not second or len({mask.size for mask in (*first, *second)}) != 1:
        return 0.0
    pixels = mask_area(union([*first, *second]))
    shared = mask_area(union(first)) + mask_area(union(second)) - pixels
    return shared / pixels if pixels else 0.0
