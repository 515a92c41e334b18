"""Metrics of overlap: the accuracy of one box per row, and the mean IoU of masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgcli.boxes import iou
from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric, has_pixels
from pgcli.records import Box, Rle
from pgcli.rle import mask_area, union

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
