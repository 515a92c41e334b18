"""COCO's average precision and recall of boxes, and precision, recall, F1 and calibration.

pycocotools matches the boxes; their sums are weighted here, so that images can be resampled.

Letters of shapes: N rows, R resamples, D boxes of a label, T thresholds, K bins.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from pgcli.boxes import box_area, iou
from pgcli.evaluation.joined_row import JoinedRow, RowTruth
from pgcli.evaluation.measures import RESAMPLES, Measure, ratio
from pgcli.evaluation.metrics import Metric
from pgcli.records import Box

RECALLS = np.linspace(0.0, 1.0, 101)
THRESHOLDS = 10  # IoU from 0.5 to 0.95
MAX_BOXES = (1, 10, 100)  # of a label in a row, the most confident
#: COCO's ranges of areas, in its order.
SIZES = ("", "small", "medium", "large")
MAX_WORK = 50_000_000  # boxes times resamples times thresholds, which takes some seconds
MIN_RESAMPLES = 100
BINS = 10
IOU = 0.5


def measure_ap(rows: Sequence[JoinedRow]) -> list[Measure]:
    """AP and AR as in COCO, precision, recall and F1 of all boxes at an IoU of 0.5, and the
    expected calibration error: the mean over boxes of how far the share of right ones in their bin
    of confidence is from the mean confidence there.
    """
    right = np.array([sum(is_right(row.boxes, row.true_boxes)) for row in rows])
    boxes = np.array([len(row.boxes) for row in rows])
    true = np.array([len(row.true_boxes) for row in rows])
    confidence_NK, right_NK, count_NK = confidence_sums(rows)
    return [
        *average_precisions(rows),
        ratio("precision@0.5", right, boxes),
        ratio("recall@0.5", right, true),
        ratio("f1@0.5", 2 * right, boxes + true),
        ratio("calibration", confidence_NK - right_NK, count_NK.sum(axis=1)),
    ]


AP = Metric("boxes", measure_ap)


@dataclass(frozen=True)
class LabelBoxes:
    """The boxes of a label in descending order of confidence, and the number of true ones.

    `rank_D` is the number of more confident ones of the label in the same row. `is_true_DT` says
    whether a box is a true one at each threshold. It is neither right nor wrong where
    `is_counted_DT` is false: in a crowd, or where the box, or the one it matches, has another size.
    """

    row_D: np.ndarray
    rank_D: np.ndarray
    is_true_DT: np.ndarray
    is_counted_DT: np.ndarray
    true_N: np.ndarray

    def select(self, rows: np.ndarray) -> LabelBoxes:
        """The boxes of the rows with these numbers."""
        number_N = np.full(len(self.true_N), -1)
        number_N[rows] = np.arange(len(rows))
        kept = np.flatnonzero(number_N[self.row_D] >= 0)
        own = (self.rank_D[kept], self.is_true_DT[kept], self.is_counted_DT[kept])
        return LabelBoxes(number_N[self.row_D[kept]], *own, self.true_N[rows])


@dataclass(frozen=True)
class MeanOverLabels:
    """The mean of a value of each label that has true boxes; `work` is the cost of a resample.

    Images that a resample repeats raise the precision at many recalls: `is_biased` is true of it.
    """

    name: str
    labels: tuple[LabelBoxes, ...]
    of_label: Callable[[LabelBoxes, np.ndarray], float]
    work: int
    is_biased: bool = False

    @property
    def max_resamples(self) -> int:
        return min(RESAMPLES, max(MIN_RESAMPLES, MAX_WORK // max(1, self.work)))

    def select(self, rows: np.ndarray) -> Self:
        return replace(self, labels=tuple(label.select(rows) for label in self.labels))

    def values(self, weights_RN: np.ndarray) -> np.ndarray:
        return np.array([self._value(weight_N) for weight_N in weights_RN])

    def _value(self, weight_N: np.ndarray) -> float:
        labels = [label for label in self.labels if label.true_N @ weight_N > 0]
        values = [self.of_label(label, weight_N) for label in labels]
        return float(np.mean(values)) if values else math.nan


def label_precision(
    label: LabelBoxes, weight_N: np.ndarray, *, thresholds: slice = slice(None)
) -> float:
    """The mean precision of a label at 101 recalls, over some of the thresholds."""
    is_true_DT, is_counted_DT = label.is_true_DT[:, thresholds], label.is_counted_DT[:, thresholds]
    weight_D1 = weight_N[label.row_D][:, None]
    right_DT = np.cumsum(weight_D1 * (is_true_DT & is_counted_DT), axis=0)
    wrong_DT = np.cumsum(weight_D1 * (~is_true_DT & is_counted_DT), axis=0)
    recall_DT = right_DT / (label.true_N @ weight_N)
    precision_DT = right_DT / (right_DT + wrong_DT + np.spacing(1))
    envelope_DT = np.maximum.accumulate(precision_DT[::-1], axis=0)[::-1]
    means = []
    for recall_D, envelope_D in zip(recall_DT.T, envelope_DT.T, strict=True):
        first = np.searchsorted(recall_D, RECALLS, side="left")
        means.append(float(envelope_D[first[first < len(envelope_D)]].sum() / len(RECALLS)))
    return float(np.mean(means))


def label_recall(
    label: LabelBoxes, weight_N: np.ndarray, *, max_boxes: int = MAX_BOXES[-1]
) -> float:
    """The mean recall of a label over thresholds, with so many boxes in each row."""
    weight_D = weight_N[label.row_D] * (label.rank_D < max_boxes)
    right_T = weight_D @ (label.is_true_DT & label.is_counted_DT)
    return float(np.mean(right_T) / (label.true_N @ weight_N))


def average_precisions(rows: Sequence[JoinedRow]) -> list[MeanOverLabels]:
    """COCO's twelve values: AP and AR over the thresholds, at some of them, and by size.

    The labels are those of true boxes: boxes of other labels do not count, as in COCO.
    """
    labels = matched_boxes(rows)

    def measure(name: str, size: str, value: Callable[..., float], columns: int) -> MeanOverLabels:
        work = sum(len(label.row_D) + 300 for label in labels[size]) * columns
        return MeanOverLabels(name, tuple(labels[size]), value, work, name.startswith("ap"))

    at = {name: slice(column, column + 1) for name, column in (("ap50", 0), ("ap75", 5))}
    sizes = SIZES[1:]
    return [
        measure("ap", "", label_precision, THRESHOLDS),
        *(measure(name, "", partial(label_precision, thresholds=at[name]), 1) for name in at),
        *(measure(f"ap_{size}", size, label_precision, THRESHOLDS) for size in sizes),
        *(measure(f"ar@{n}", "", partial(label_recall, max_boxes=n), 1) for n in MAX_BOXES),
        *(measure(f"ar_{size}", size, label_recall, 1) for size in sizes),
    ]


def matched_boxes(rows: Sequence[JoinedRow]) -> dict[str, list[LabelBoxes]]:
    """The boxes of each label that has true ones, matched by pycocotools, for each of SIZES.

    There are none for a size where the area of a true box is NaN: it might be of that size.
    """
    annotations = {box.label: LabelAnnotations([], []) for row in rows for box in row.true_boxes}
    for number, row in enumerate(rows):
        truth = row.truth or RowTruth()
        for box, object_area in zip(row.true_boxes, truth.box_areas, strict=True):
            annotations[box.label].add_true(number, box, object_area)
        for box in truth.crowds:
            if box.label in annotations:
                annotations[box.label].add_true(number, box, box_area(box), is_crowd=True)
        for box in row.boxes:
            if box.label in annotations:
                annotations[box.label].add_answered(number, box)
    labels: dict[str, list[LabelBoxes]] = {size: [] for size in SIZES}
    for label in annotations.values():
        for size, matches in zip(SIZES, label.matches(), strict=True):
            labels[size].append(label_boxes(matches, len(rows)))
    if any(math.isnan(box["area"]) for label in annotations.values() for box in label.true):
        return {size: [] if size else labels[""] for size in SIZES}
    return labels


@dataclass(frozen=True)
class LabelAnnotations:
    """The true and the answered boxes of a label, as pycocotools takes them."""

    true: list[dict[str, Any]]
    answered: list[dict[str, Any]]

    def add_true(
        self, number: int, box: Box, object_area: float, *, is_crowd: bool = False
    ) -> None:
        """Add a true box of a row."""
        known = annotation(number, box, len(self.true))
        self.true.append(known | {"area": object_area, "iscrowd": int(is_crowd)})

    def add_answered(self, number: int, box: Box) -> None:
        """Add a box of a row's answer."""
        known = annotation(number, box, len(self.answered))
        self.answered.append(known | {"area": box_area(box), "score": confidence_of(box)})

    def matches(self) -> list[list[Mapping[str, Any]]]:
        """What pycocotools says of each row that has boxes of the label, for each of SIZES."""
        numbers = sorted({box["image_id"] for box in (*self.true, *self.answered)})
        with redirect_stdout(io.StringIO()):  # where it reports its progress
            pair = (COCO(), COCO())
            for dataset, boxes in zip(pair, (self.true, self.answered), strict=True):
                images = [{"id": number} for number in numbers]
                dataset.dataset = {"images": images, "categories": [{"id": 0}]}
                dataset.dataset["annotations"] = boxes
                dataset.createIndex()
            evaluation = COCOeval(*pair, "bbox")
            evaluation.evaluate()
        count = len(numbers)
        return [evaluation.evalImgs[n * count : (n + 1) * count] for n in range(len(SIZES))]


def annotation(number: int, box: Box, index: int) -> dict[str, Any]:
    """A box of a row in COCO's form, whose ids begin with 1."""
    sides = [box.xmin, box.ymin, box.xmax - box.xmin, box.ymax - box.ymin]
    return {"id": index + 1, "image_id": number, "category_id": 0, "bbox": sides}


def label_boxes(matches: Sequence[Mapping[str, Any]], rows: int) -> LabelBoxes:
    """The boxes of a label, from what pycocotools says of each of the rows that have any."""
    numbers = [match["image_id"] for match in matches]
    counts = [len(match["dtScores"]) for match in matches]
    scores = np.array([score for match in matches for score in match["dtScores"]], np.float64)
    order = np.argsort(-scores, kind="stable")
    is_true_DT, is_ignored_DT = (
        np.concatenate([match[name].T for match in matches])[order] > 0
        for name in ("dtMatches", "dtIgnore")
    )
    true_N = np.zeros(rows)
    true_N[numbers] = [np.count_nonzero(match["gtIgnore"] == 0) for match in matches]
    return LabelBoxes(
        np.repeat(numbers, counts)[order],
        np.array([rank for count in counts for rank in range(count)], np.int64)[order],
        is_true_DT,
        ~is_ignored_DT,
        true_N,
    )


def confidence_of(box: Box) -> float:
    """The confidence of a box, or its score where it has none."""
    number = box.score if box.confidence is None else box.confidence
    return 1.0 if number is None else number


def is_right(boxes: Sequence[Box], true: Sequence[Box], threshold: float = IOU) -> list[bool]:
    """Whether each box is a true one of its label, each true one at most once.

    Boxes are matched in descending order of confidence, each to the free one with the highest IoU.
    """
    free, right = list(true), [False] * len(boxes)
    for number in sorted(range(len(boxes)), key=lambda number: -confidence_of(boxes[number])):
        box = boxes[number]
        same = [candidate for candidate in free if candidate.label == box.label]
        best = max(same, key=lambda candidate: iou(box, candidate), default=None)
        if best is not None and iou(box, best) >= threshold:
            free.remove(best)
            right[number] = True
    return right


class Bin(NamedTuple):
    """The boxes with a confidence between `low` and `high`: its mean, the share of right ones, and
    their number.
    """

    low: float
    high: float
    confidence: float
    right: float
    boxes: int


def confidence_sums(rows: Sequence[JoinedRow]) -> np.ndarray:
    """The sums of confidences, the right boxes and all boxes of each row by bins (3, N, K)."""
    sums_3NK = np.zeros((3, len(rows), BINS))
    for number, row in enumerate(rows):
        for box, right in zip(row.boxes, is_right(row.boxes, row.true_boxes), strict=True):
            if box.confidence is not None:
                column = min(int(box.confidence * BINS), BINS - 1)
                sums_3NK[:, number, column] += box.confidence, right, 1
    return sums_3NK


def calibration_bins(rows: Sequence[JoinedRow]) -> list[Bin]:
    """The bins of confidence that have boxes."""
    sums_K3 = confidence_sums(rows).sum(axis=1).T.tolist()
    return [
        Bin(column / BINS, (column + 1) / BINS, confidence / count, right / count, int(count))
        for column, (confidence, right, count) in enumerate(sums_K3)
        if count
    ]
