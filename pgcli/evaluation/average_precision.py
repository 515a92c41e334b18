"""COCO's average precision and recall of boxes, as pycocotools computes them.

Letters of shapes: N rows, U images, R resamples, D boxes found, T thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from pgcli.evaluation.box_matching import MAX_BOXES, THRESHOLDS, FoundBoxes, found_boxes
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import RESAMPLES

RECALLS = np.linspace(0.0, 1.0, 101)
MAX_WORK = 50_000_000  # boxes times resamples times thresholds, which takes some seconds
MIN_RESAMPLES = 100
EVERY = tuple(range(len(THRESHOLDS)))

#: The value of a label, with each row counted as its weight says.
LabelValue = Callable[[FoundBoxes, np.ndarray], float]


@dataclass(frozen=True)
class MeanOverLabels:
    """The mean of a value of each label that has true boxes; `work` is the cost of a resample."""

    name: str
    labels: tuple[FoundBoxes, ...]
    of_label: LabelValue
    work: int
    scores_N: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.scores_N)

    @property
    def max_resamples(self) -> int:
        return min(RESAMPLES, max(MIN_RESAMPLES, MAX_WORK // max(1, self.work)))

    def row_scores(self) -> np.ndarray:
        return self.scores_N

    def select(self, is_chosen_N: np.ndarray) -> Self:
        labels = tuple(one.select(is_chosen_N) for one in self.labels)
        return replace(self, labels=labels, scores_N=self.scores_N[is_chosen_N])

    def values(self, weights_RU: np.ndarray, image_N: np.ndarray) -> np.ndarray:
        return np.array([self._value(weights_U[image_N]) for weights_U in weights_RU])

    def _value(self, weight_N: np.ndarray) -> float:
        found = [
            self.of_label(one, weight_N) for one in self.labels if (one.true_N * weight_N).sum() > 0
        ]
        return float(np.mean(found)) if found else float("nan")


def label_precision(
    one: FoundBoxes, weight_N: np.ndarray, *, thresholds: Sequence[int] = EVERY
) -> float:
    """The mean precision of a label at 101 recalls, over the thresholds with these numbers."""
    columns = list(thresholds)
    is_true_DT, is_counted_DT = one.is_true_DT[:, columns], one.is_counted_DT[:, columns]
    weight_D1 = weight_N[one.row_D][:, None]
    right_DT = np.cumsum(weight_D1 * (is_true_DT & is_counted_DT), axis=0)
    wrong_DT = np.cumsum(weight_D1 * (~is_true_DT & is_counted_DT), axis=0)
    recall_DT = right_DT / (one.true_N * weight_N).sum()
    precision_DT = right_DT / (right_DT + wrong_DT + np.spacing(1))
    envelope_DT = np.maximum.accumulate(precision_DT[::-1], axis=0)[::-1]
    found = []
    for recall_D, envelope_D in zip(recall_DT.T, envelope_DT.T, strict=True):
        places = np.searchsorted(recall_D, RECALLS, side="left")
        found.append(float(envelope_D[places[places < len(envelope_D)]].sum() / len(RECALLS)))
    return float(np.mean(found))


def label_recall(one: FoundBoxes, weight_N: np.ndarray, *, max_boxes: int = MAX_BOXES) -> float:
    """The mean recall of a label over thresholds, with so many boxes in each row."""
    weight_D = weight_N[one.row_D] * (one.rank_D < max_boxes)
    right_T = weight_D @ (one.is_true_DT & one.is_counted_DT)
    return float(np.mean(right_T) / (one.true_N * weight_N).sum())


def average_precisions(rows: Sequence[JoinedRow], scores: np.ndarray) -> list[MeanOverLabels]:
    """COCO's twelve values: AP and AR over the thresholds, at some of them, and by size.

    `scores` are those of the rows. The labels are those of true boxes: boxes of other labels do not
    count, as in COCO.
    """
    sized = {size: tuple(labels) for size, labels in found_boxes(rows).items()}

    def measure(name: str, size: str, value: LabelValue, columns: int) -> MeanOverLabels:
        work = sum(len(one.row_D) + 300 for one in sized[size]) * columns
        return MeanOverLabels(name, sized[size], value, work, scores)

    every = len(THRESHOLDS)
    sizes = [size for size in sized if size]
    return [
        measure("ap", "", label_precision, every),
        measure("ap50", "", partial(label_precision, thresholds=(0,)), 1),
        measure("ap75", "", partial(label_precision, thresholds=(5,)), 1),
        *(measure(f"ap_{size}", size, label_precision, every) for size in sizes),
        *(
            measure(f"ar@{most}", "", partial(label_recall, max_boxes=most), 1)
            for most in (1, 10, MAX_BOXES)
        ),
        *(measure(f"ar_{size}", size, label_recall, 1) for size in sizes),
    ]
