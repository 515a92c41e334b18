"""COCO's average precision of boxes, as pycocotools computes it.

Letters of shapes: N rows, U images, R resamples, D boxes found, T thresholds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import RESAMPLES
from pgcli.evaluation.metrics import area, iou, overlap
from pgcli.records import Box

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MAX_BOXES = 100  # found of a label in a row, the most confident
MAX_WORK = 100_000_000  # boxes times resamples times thresholds, which takes some seconds
MIN_RESAMPLES = 100


@dataclass(frozen=True)
class FoundBoxes:
    """The boxes of a label that were found, in descending order of confidence, and the true ones.

    `is_true_DT` says whether a box is a true one at each threshold. It is neither right nor wrong
    where `is_counted_DT` is false: in a crowd.
    """

    row_D: np.ndarray
    is_true_DT: np.ndarray
    is_counted_DT: np.ndarray
    true_N: np.ndarray


@dataclass(frozen=True)
class AveragePrecision:
    """The mean over labels and `thresholds`, by their numbers, of the precision at 101 recalls."""

    name: str
    labels: tuple[FoundBoxes, ...]
    thresholds: tuple[int, ...]
    scores_N: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.scores_N)

    @property
    def max_resamples(self) -> int:
        work = sum(len(one.row_D) + 300 for one in self.labels) * len(self.thresholds)
        return min(RESAMPLES, max(MIN_RESAMPLES, MAX_WORK // max(1, work)))

    def row_scores(self) -> np.ndarray:
        return self.scores_N

    def select(self, is_chosen_N: np.ndarray) -> Self:
        number_N = np.cumsum(is_chosen_N) - 1
        labels = []
        for one in self.labels:
            is_kept_D = is_chosen_N[one.row_D]
            kept = FoundBoxes(
                number_N[one.row_D[is_kept_D]],
                one.is_true_DT[is_kept_D],
                one.is_counted_DT[is_kept_D],
                one.true_N[is_chosen_N],
            )
            labels.append(kept)
        return replace(self, labels=tuple(labels), scores_N=self.scores_N[is_chosen_N])

    def values(self, weights_RU: np.ndarray, image_N: np.ndarray) -> np.ndarray:
        return np.array([self._value(weights_U[image_N]) for weights_U in weights_RU])

    def _value(self, weight_N: np.ndarray) -> float:
        found = [
            label_precisions(one, weight_N, self.thresholds)
            for one in self.labels
            if (one.true_N * weight_N).sum() > 0
        ]
        return float(np.mean(found)) if found else float("nan")


def label_precisions(
    one: FoundBoxes, weight_N: np.ndarray, thresholds: tuple[int, ...]
) -> list[float]:
    """The mean precision of a label at 101 recalls, with each row counted as its weight says."""
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
    return found


def average_precisions(rows: Sequence[JoinedRow], scores: np.ndarray) -> list[AveragePrecision]:
    """AP over the thresholds 0.5 to 0.95, at 0.5 and at 0.75; `scores` are those of the rows.

    The labels are those of true boxes: boxes of other labels do not count, as in COCO.
    """
    labels = tuple(found_boxes(rows))
    every = tuple(range(len(THRESHOLDS)))
    kinds = {"ap": every, "ap50": (0,), "ap75": (5,)}
    return [AveragePrecision(name, labels, kind, scores) for name, kind in kinds.items()]


def found_boxes(rows: Sequence[JoinedRow]) -> Iterator[FoundBoxes]:
    """The boxes of each label that has true ones."""
    by_label: dict[str, dict[int, tuple[list[Box], list[Box], list[Box]]]] = {}
    for number, row in enumerate(rows):
        truth = row.truth
        kinds = ((truth and truth.boxes) or (), (truth and truth.crowds) or (), row.boxes)
        for kind, boxes in enumerate(kinds):
            for box in boxes:
                of_label = by_label.setdefault(box.label, {})
                of_label.setdefault(number, ([], [], []))[kind].append(box)
    for of_label in by_label.values():
        if any(true for true, _, _ in of_label.values()):
            yield found_of_label(of_label, len(rows))


def found_of_label(
    rows: dict[int, tuple[list[Box], list[Box], list[Box]]], count: int
) -> FoundBoxes:
    """The boxes of a label by row: the true ones, crowds, and those found."""
    true_N = np.zeros(count)
    numbers, scores, is_true, is_counted = [], [], [], []
    for number in sorted(rows):
        true, crowds, boxes = rows[number]
        true_N[number] = len(true)
        best = sorted(boxes, key=lambda box: -confidence_of(box))[:MAX_BOXES]
        matched, counted = match(best, true, crowds)
        numbers += [number] * len(best)
        scores += [confidence_of(box) for box in best]
        is_true += matched
        is_counted += counted
    order = np.argsort(-np.array(scores, np.float64), kind="stable")
    shape = (len(numbers), len(THRESHOLDS))
    return FoundBoxes(
        np.array(numbers, np.int64)[order],
        np.array(is_true, bool).reshape(shape)[order],
        np.array(is_counted, bool).reshape(shape)[order],
        true_N,
    )


def confidence_of(box: Box) -> float:
    """The confidence of a box, or its score where it has none."""
    return box.score if box.confidence is None else box.confidence


def match(
    found: Sequence[Box], true: Sequence[Box], crowds: Sequence[Box]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Whether each box found is a true one at each threshold, and whether it counts there.

    In their order, boxes take the free true box with the highest IoU, the last of equal ones.
    """
    count = len(THRESHOLDS)
    ious = [[iou(box, other) for other in true] for box in found]
    is_free: defaultdict[int, list[bool]] = defaultdict(lambda: [True] * count)
    is_true, is_counted = [], []
    for box, of_box in zip(found, ious, strict=True):
        matched, counted = np.zeros(count, bool), np.ones(count, bool)
        near = sorted(
            (number for number, one in enumerate(of_box) if one >= THRESHOLDS[0]),
            key=lambda number: (of_box[number], number),
            reverse=True,
        )
        for number in near:
            for threshold in range(count):
                if of_box[number] < THRESHOLDS[threshold]:
                    break
                if is_free[number][threshold] and not matched[threshold]:
                    is_free[number][threshold], matched[threshold] = False, True
        if crowds:
            share = max(share_in(box, crowd) for crowd in crowds)
            counted = matched | (share < THRESHOLDS)
        is_true.append(matched)
        is_counted.append(counted)
    return is_true, is_counted


def share_in(box: Box, crowd: Box) -> float:
    """The share of the box that is in the crowd."""
    shared = overlap(box.xmin, box.xmax, crowd.xmin, crowd.xmax)
    shared *= overlap(box.ymin, box.ymax, crowd.ymin, crowd.ymax)
    return shared / area(box) if area(box) else 0.0
