"""Measures of boxes: average precision, precision, recall and F1, accuracy, and calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgcli.evaluation.average_precision import average_precisions, confidence_of
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, RowRatio
from pgcli.evaluation.metrics import iou
from pgcli.records import Box

IOU = 0.5
BINS = 10  # of confidence


def detection_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """AP as in COCO, and precision, recall and F1 of all boxes at an IoU of 0.5."""
    right, found, true = (np.zeros(len(rows)) for _ in range(3))
    for number, row in enumerate(rows):
        boxes = true_boxes(row)
        right[number] = sum(is_right(row.boxes, boxes))
        found[number], true[number] = len(row.boxes), len(boxes)
    f1 = RowRatio("f1@0.5", 2 * right, found + true)
    scores = f1.row_scores()
    scores[np.isnan(scores)] = 1.0  # nothing to find, and nothing found
    return [
        *average_precisions(rows, scores),
        RowRatio("precision@0.5", right, found),
        RowRatio("recall@0.5", right, true),
        f1,
    ]


def box_accuracy(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose first box has an IoU of 0.5 with the true one; none is a miss."""
    hits = [
        bool(row.boxes and true_boxes(row)) and iou(row.boxes[0], true_boxes(row)[0]) >= IOU
        for row in rows
    ]
    return [RowRatio.mean("acc@0.5", hits)]


def true_boxes(row: JoinedRow) -> tuple[Box, ...]:
    """The true boxes of a row; none of a surplus one."""
    return (row.truth.boxes or ()) if row.truth is not None else ()


def is_right(found: Sequence[Box], true: Sequence[Box]) -> list[bool]:
    """Whether each box found is a true one of its label, each at most once.

    Boxes are matched in descending order of confidence, each to the free one with the highest IoU.
    """
    free, right = list(true), [False] * len(found)
    for number in sorted(range(len(found)), key=lambda number: -confidence_of(found[number])):
        box = found[number]
        same = [other for other in free if other.label == box.label]
        best = max(same, key=lambda other: iou(box, other), default=None)
        if best is not None and iou(box, best) >= IOU:
            free.remove(best)
            right[number] = True
    return right


def calibration(rows: Sequence[JoinedRow]) -> list[tuple[float, float, int]]:
    """The mean confidence, the share of right boxes and their number, in each bin that has boxes.

    Empty where boxes have no confidence.
    """
    pairs = [
        (box.confidence, right)
        for row in rows
        for box, right in zip(row.boxes, is_right(row.boxes, true_boxes(row)), strict=True)
        if box.confidence is not None
    ]
    if not pairs:
        return []
    confidence_D, right_D = np.array(pairs, np.float64).T
    bin_D = np.minimum((confidence_D * BINS).astype(np.int64), BINS - 1)
    counts, sums, hits = (
        np.bincount(bin_D, one, BINS) for one in (np.ones(len(pairs)), confidence_D, right_D)
    )
    return [
        (float(sums[one] / counts[one]), float(hits[one] / counts[one]), int(counts[one]))
        for one in np.flatnonzero(counts)
    ]


def calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """The expected calibration error: how far bins are from their confidence on average."""
    boxes = sum(count for _, _, count in bins)
    return sum(abs(mean - share) * count for mean, share, count in bins) / max(1, boxes)
