"""COCO's average precision and recall of boxes, and precision, recall and F1 at one threshold.

Boxes are matched once. A resample only weights the matches of each image, so that the values equal
pycocotools on the repeated images.

Letters of shapes: N rows, U images, R resamples, L labels, T thresholds, D answered boxes, P pairs
of a box and a threshold at which it does not count, K pairs that match, G groups of a label and a
threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import RESAMPLES, Measure, ratio
from pgcli.evaluation.metrics import Metric
from pgcli.evaluation.metrics.matching import IOUS, MAX_BOXES, SIZES, Matches, match_boxes

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
