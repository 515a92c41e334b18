"""COCO's average precision and recall of boxes, and precision, recall, F1 and calibration.

pycocotools matches the boxes; this module weights the sums, so that images can be resampled.

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
    """COCO's AP and AR, precision, recall and F1 at an IoU of 0.5, and expected calibration error.

    The calibration error is the mean over boxes of the difference between the share of right boxes
    and the mean confidence in their bin of confidence.
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
    """The boxes of a label in descending order of confidence, and the count of true boxes.

    `rank_D` counts more confident boxes of the label in the same row. `is_true_DT` says whether a
    box matches at each threshold. A box counts as neither right nor wrong if `is_counted_DT` is
    false: it is in a crowd, or it or its match has another size.
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
    """The mean over labels with true boxes; `work` is the cost of a resample.

    Precision `is_biased`: images that a resample repeats raise it at many recalls.
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
    """The mean recall of a label over thresholds, with at most `max_boxes` boxes per row."""
    weight_D = weight_N[label.row_D] * (label.rank_D < max_boxes)
    right_T = weight_D @ (label.is_true_DT & label.is_counted_DT)
    return float(np.mean(right_T) / (label.true_N @ weight_N))


def average_precisions(rows: Sequence[JoinedRow]) -> list[MeanOverLabels]:
    """COCO's twelve values: AP and AR over the thresholds, at some of them, and by size.

    As in COCO, boxes whose label has no true box do not count.
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
    """The boxes of each label with true boxes, matched by pycocotools, for each of SIZES.

    Sizes have no labels if the area of a true box is NaN: it might have that size.
    """
    true: dict[str, list[dict[str, Any]]] = {
        box.label: [] for row in rows for box in row.true_boxes
    }
    answered: dict[str, list[dict[str, Any]]] = {label: [] for label in true}
    for number, row in enumerate(rows):
        truth = row.truth or RowTruth()
        for box, area in zip(row.true_boxes, truth.box_areas, strict=True):
            true[box.label].append(annotation(number, box, area=area, iscrowd=0))
        for box in truth.crowds:
            if box.label in true:
                true[box.label].append(annotation(number, box, area=box_area(box), iscrowd=1))
        for box in row.boxes:
            if box.label in true:
                own = annotation(number, box, area=box_area(box), score=confidence_of(box))
                answered[box.label].append(own)
    has_areas = not any(math.isnan(box["area"]) for boxes in true.values() for box in boxes)
    labels: dict[str, list[LabelBoxes]] = {size: [] for size in SIZES}
    for label, boxes in true.items():
        for size, matches in zip(SIZES, coco_matches(boxes, answered[label]), strict=True):
            if has_areas or not size:
                labels[size].append(label_boxes(matches, len(rows)))
    return labels


def annotation(number: int, box: Box, **values: float) -> dict[str, Any]:
    """A box of a row in COCO's form, except for its id."""
    sides = [box.xmin, box.ymin, box.xmax - box.xmin, box.ymax - box.ymin]
    return {"image_id": number, "category_id": 0, "bbox": sides, **values}


def coco_matches(
    true: Sequence[dict[str, Any]], answered: Sequence[dict[str, Any]]
) -> list[list[Mapping[str, Any]]]:
    """pycocotools' matches in each row with boxes of a label, for each of SIZES."""
    numbers = sorted({box["image_id"] for box in (*true, *answered)})
    with redirect_stdout(io.StringIO()):  # where pycocotools reports its progress
        pair = (COCO(), COCO())
        for dataset, boxes in zip(pair, (true, answered), strict=True):
            images = [{"id": number} for number in numbers]
            dataset.dataset = {"images": images, "categories": [{"id": 0}]}
            dataset.dataset["annotations"] = [box | {"id": n} for n, box in enumerate(boxes, 1)]
            dataset.createIndex()
        evaluation = COCOeval(*pair, "bbox")
        evaluation.evaluate()
    count = len(numbers)
    return [evaluation.evalImgs[n * count : (n + 1) * count] for n in range(len(SIZES))]


def label_boxes(matches: Sequence[Mapping[str, Any]], rows: int) -> LabelBoxes:
    """The boxes of a label, from pycocotools' matches in each row that has any."""
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
    """The confidence of a box, else its score, else 1."""
    number = box.score if box.confidence is None else box.confidence
    return 1.0 if number is None else number


def is_right(boxes: Sequence[Box], true: Sequence[Box], threshold: float = IOU) -> list[bool]:
    """Whether each box matches a true box of its label; each true box matches once.

    Boxes are matched in descending order of confidence, each to the free box with the highest IoU.
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
    """Boxes with a confidence from `low` to `high`: its mean, the share of right boxes, a count."""

    low: float
    high: float
    confidence: float
    right: float
    boxes: int


def confidence_sums(rows: Sequence[JoinedRow]) -> np.ndarray:
    """The sum of confidences, right boxes and all boxes, by row and bin (3, N, K)."""
    sums_3NK = np.zeros((3, len(rows), BINS))
    for number, row in enumerate(rows):
        for box, right in zip(row.boxes, is_right(row.boxes, row.true_boxes), strict=True):
            if box.confidence is not None:
                column = min(int(box.confidence * BINS), BINS - 1)
                sums_3NK[:, number, column] += box.confidence, right, 1
    return sums_3NK


def calibration_bins(rows: Sequence[JoinedRow]) -> list[Bin]:
    """The bins of confidence with boxes."""
    sums_K3 = confidence_sums(rows).sum(axis=1).T.tolist()
    return [
        Bin(column / BINS, (column + 1) / BINS, confidence / count, right / count, int(count))
        for column, (confidence, right, count) in enumerate(sums_K3)
        if count
    ]
