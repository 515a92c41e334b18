"""Measures of boxes: average precision and recall, precision, recall and F1, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgcli.evaluation.average_precision import average_precisions
from pgcli.evaluation.box_matching import is_right
from pgcli.evaluation.calibration import CalibrationError
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, RowRatio
from pgcli.iou import iou
from pgcli.records import Box

IOU = 0.5


def detection_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """AP and AR as in COCO, precision, recall and F1 of all boxes at an IoU of 0.5, and their
    calibration.
    """
    are_right = [is_right(row.boxes, true_boxes(row)) for row in rows]
    right = np.array([sum(one) for one in are_right], np.float64)
    found = np.array([len(row.boxes) for row in rows], np.float64)
    true = np.array([len(true_boxes(row)) for row in rows], np.float64)
    f1 = RowRatio("f1@0.5", 2 * right, found + true)
    scores = f1.row_scores()
    scores[np.isnan(scores)] = 1.0  # nothing to find, and nothing found
    return [
        *average_precisions(rows, scores),
        RowRatio("precision@0.5", right, found),
        RowRatio("recall@0.5", right, true),
        f1,
        CalibrationError.of([row.boxes for row in rows], are_right),
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
