"""The mean intersection over union of masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, RowRatio
from pgcli.records import Rle
from pgcli.rle import spans


def mask_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean over rows of the IoU of their masks; a row without a valid mask counts as 0."""
    return [RowRatio.mean("miou", [row_iou(row) for row in rows])]


def row_iou(row: JoinedRow) -> float:
    """The mean over labels of the IoU of their masks; 1 where there is nothing, and none found."""
    if row.truth is None or row.row is None:
        return 0.0
    true = by_label(row.truth.boxes or (), row.truth.masks or ())
    found = by_label(row.boxes, row.masks)
    if not true:
        return float(not found)
    return sum(mask_iou(found.get(label, ()), masks) for label, masks in true.items()) / len(true)


def by_label(boxes: Iterable[object], masks: Iterable[Rle | None]) -> dict[str, list[Rle]]:
    """The masks of each label; a box without a mask has none."""
    found: dict[str, list[Rle]] = {}
    for box, mask in zip(boxes, masks, strict=False):
        if mask is not None:
            found.setdefault(getattr(box, "label", ""), []).append(mask)
    return found


def mask_iou(one: Iterable[Rle], other: Iterable[Rle]) -> float:
    """The IoU of the unions of masks of an image; 0 where they are of images of other sizes."""
    one, other = list(one), list(other)
    if len({mask.size for mask in (*one, *other)}) != 1:
        return 0.0
    first, second, both = (pixels(masks) for masks in (one, other, [*one, *other]))
    return (first + second - both) / both if both else 0.0


def pixels(masks: Sequence[Rle]) -> int:
    """The number of pixels in at least one of the masks."""
    if not masks:
        return 0
    runs_n2 = np.concatenate([spans(mask) for mask in masks])
    runs_n2 = runs_n2[np.argsort(runs_n2[:, 0], kind="stable")]
    reached = np.maximum.accumulate(runs_n2[:, 1])
    starts = np.maximum(runs_n2[:, 0], np.concatenate([[0], reached[:-1]]))
    return int(np.maximum(reached - starts, 0).sum())
