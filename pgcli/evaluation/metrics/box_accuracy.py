"""The accuracy of one box for each row, as for RefCOCO."""

from __future__ import annotations

from collections.abc import Sequence

from pgcli.boxes import iou
from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric

IOU = 0.5


def measure_box_accuracy(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose first box has an IoU of 0.5 with the true one; none is a miss.

    Raises UsageError for several true boxes of a row.
    """
    if any(len(row.true_boxes) > 1 for row in rows):
        raise UsageError(
            "--metric acc@0.5 compares one box of a row, and a row of the truth has several",
            hint="--metric ap is for any number of boxes",
        )
    hits = [
        bool(row.boxes and row.true_boxes) and iou(row.boxes[0], row.true_boxes[0]) >= IOU
        for row in rows
    ]
    return [mean("acc@0.5", hits)]


BOX_ACCURACY = Metric("boxes", measure_box_accuracy)
