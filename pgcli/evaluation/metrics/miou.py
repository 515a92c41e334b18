"""The mean intersection over union of masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric, has_pixels
from pgcli.records import Box, Rle
from pgcli.rle import mask_area, union


def measure_miou(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean over rows of the IoU of their masks; a row without a valid mask counts as 0.

    Raises UsageError for rows that have boxes and no masks.
    """
    if not has_pixels(rows) and any(row.boxes for row in rows):
        raise UsageError(
            "--metric miou needs masks, and the rows have codes only",
            hint="pgcli segment --mask-decoder FILE decodes them",
        )
    return [mean("miou", [row_iou(row) for row in rows])]


MIOU = Metric("masks", measure_miou)


def row_iou(row: JoinedRow) -> float:
    """The mean over labels of the IoU of their masks; 1 where there is nothing, and no answer."""
    if row.truth is None or row.row is None:
        return 0.0
    true = masks_by_label(row.true_boxes, row.truth.masks or ())
    masks = masks_by_label(row.boxes, row.masks)
    if not true:
        return float(not masks)
    return sum(mask_iou(masks.get(label, []), own) for label, own in true.items()) / len(true)


def masks_by_label(boxes: Iterable[Box], masks: Iterable[Rle | None]) -> dict[str, list[Rle]]:
    """The masks of each label; a box without a mask has none."""
    labelled: dict[str, list[Rle]] = {}
    for box, mask in zip(boxes, masks, strict=False):
        if mask is not None:
            labelled.setdefault(box.label, []).append(mask)
    return labelled


def mask_iou(first: Sequence[Rle], second: Sequence[Rle]) -> float:
    """The IoU of the unions of masks of an image; 0 where they are of images of other sizes."""
    if len({mask.size for mask in (*first, *second)}) != 1:
        return 0.0
    if not first or not second:
        return 0.0
    pixels = mask_area(union([*first, *second]))
    shared = mask_area(union(first)) + mask_area(union(second)) - pixels
    return shared / pixels if pixels else 0.0
