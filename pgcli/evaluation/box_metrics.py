"""Metrics of boxes and masks: COCO's average precision and recall, overlaps of single boxes, masks.

pycocotools matches answered boxes with true boxes. Boxes of the same row and label are a group,
which pycocotools sees as an image. Boxes are matched once: a resample only weights the matches of
each image, so that the values equal pycocotools on the repeated images.

Letters of shapes: N groups, U images, R resamples, L labels, T thresholds of the IoU, D answered
boxes, G true boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import pairwise, starmap
from operator import attrgetter
from typing import Any, Self

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from pgcli.boxes import iou
from pgcli.errors import UsageError
from pgcli.evaluation.measures import RESAMPLES, JoinedRow, Measure, Metric, has_pixels, mean, ratio
from pgcli.labels.labelled_image import LabelledObject
from pgcli.records import Box, Rle
from pgcli.rle import mask_area, union

IOUS = np.linspace(0.5, 0.95, 10)
MAX_BOXES = 100  # of a group, the most confident
#: COCO's ranges of areas, in its order.
SIZES: Mapping[str, tuple[float, float]] = {
    "": (0, 1e10),
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, 1e10),
}
Annotation = dict[str, Any]


@dataclass(frozen=True)
class Matches:
    """The boxes of a range of areas, matched: answered boxes by label and descending confidence.

    `rank_D` counts more confident boxes of the group. `is_true_DT` says whether a box matches at
    each threshold. A box counts as neither right nor wrong if `is_counted_DT` is false: it is in a
    crowd, or it or its match has another size. `true_row_G` and `true_label_G` describe the
    true boxes that count.
    """

    labels: int
    row_D: np.ndarray
    label_D: np.ndarray
    rank_D: np.ndarray
    is_true_DT: np.ndarray
    is_counted_DT: np.ndarray
    true_row_G: np.ndarray
    true_label_G: np.ndarray

    def by_image(self, image_N: np.ndarray) -> Self:
        """The boxes with the image of their row in place of the row; without boxes of image -1."""
        if np.array_equal(image_N, np.arange(len(image_N))):
            return self
        kept, true = image_N[self.row_D] >= 0, image_N[self.true_row_G] >= 0
        return replace(
            self,
            row_D=image_N[self.row_D[kept]],
            label_D=self.label_D[kept],
            rank_D=self.rank_D[kept],
            is_true_DT=self.is_true_DT[kept],
            is_counted_DT=self.is_counted_DT[kept],
            true_row_G=image_N[self.true_row_G[true]],
            true_label_G=self.true_label_G[true],
        )


def match_boxes(rows: Sequence[JoinedRow]) -> dict[str, Matches]:
    """The matched boxes of the rows for each of SIZES.

    If the area of a true box is NaN, no true box counts for a size: that one might have it.
    """
    groups: dict[tuple[int, str], int] = {}
    true: list[Annotation] = []
    answered: list[Annotation] = []
    for number, row in enumerate(rows):
        objects = (row.truth.objects if row.truth else None) or ()
        # of equally close boxes, pycocotools takes the last one
        for known in sorted(objects, key=attrgetter("is_crowd")):
            group = groups.setdefault((number, known.box.label), len(groups))
            true.append(annotation(known, group, len(true) + 1))
        for box in row.boxes:
            group = groups.setdefault((number, box.label), len(groups))
            answered.append(annotation(LabelledObject(box), group, len(answered) + 1))
    names = (*(box.label for row in rows for box in row.true_boxes), *(name for _, name in groups))
    labels = {name: number for number, name in enumerate(dict.fromkeys(names))}
    row_N = np.array([row for row, _ in groups], np.int64)
    label_N = np.array([labels[label] for _, label in groups], np.int64)
    matched = coco_matches(len(groups), true, answered)
    has_areas = not any(math.isnan(box["area"]) for box in true)
    return {
        size: matches_of(own, row_N, label_N, len(labels), is_known=has_areas or not size)
        for size, own in zip(SIZES, matched, strict=True)
    }


def annotation(known: LabelledObject, group: int, number: int) -> Annotation:
    """An object as pycocotools reads it; all groups are images of one category."""
    left, top, right, bottom = known.box.corners
    return {
        "id": number,
        "image_id": group,
        "category_id": 0,
        "bbox": [left, top, right - left, bottom - top],
        "area": known.object_area,
        "iscrowd": int(known.is_crowd),
        "score": confidence_of(known.box),
    }


def coco_matches(
    groups: int, true: Sequence[Annotation], answered: Sequence[Annotation]
) -> list[list[Mapping[str, Any]]]:
    """For each of SIZES, what COCOeval says about each group."""
    images = [{"id": group} for group in range(groups)]
    with redirect_stdout(StringIO()):  # pycocotools prints its progress
        documents = []
        for boxes in (true, answered):
            documents.append(COCO())
            documents[-1].dataset = {
                "images": images,
                "categories": [{"id": 0}],
                "annotations": boxes,
            }
            documents[-1].createIndex()
        evaluation = COCOeval(*documents, "bbox")
        evaluation.params.areaRng = [*SIZES.values()]
        evaluation.params.maxDets = [max(1, len(answered))]
        evaluation.evaluate()
    return [evaluation.evalImgs[n * groups : (n + 1) * groups] for n in range(len(SIZES))]


def matches_of(
    groups: Sequence[Mapping[str, Any]],
    row_N: np.ndarray,
    label_N: np.ndarray,
    labels: int,
    *,
    is_known: bool,
) -> Matches:
    """The matches of the groups; no true box counts if their sizes are not known."""
    nothing = np.zeros((len(IOUS), 0), bool)
    confidence_D = np.hstack([[], *(group["dtScores"] for group in groups)])
    group_D = np.repeat(np.arange(len(groups)), [len(group["dtScores"]) for group in groups])
    group_G = np.repeat(np.arange(len(groups)), [len(group["gtIgnore"]) for group in groups])
    is_ignored_G = np.hstack([[], *(group["gtIgnore"] for group in groups)])
    group_G = group_G[(is_ignored_G == 0) & is_known]
    is_true_TD = np.hstack([nothing, *(group["dtMatches"] > 0 for group in groups)])
    is_ignored_TD = np.hstack([nothing, *(group["dtIgnore"] for group in groups)])
    rank_D = np.arange(len(group_D)) - np.searchsorted(group_D, group_D)
    by_label = np.lexsort((-confidence_D, label_N[group_D]))
    return Matches(
        max(1, labels),
        row_N[group_D[by_label]],
        label_N[group_D[by_label]],
        rank_D[by_label],
        is_true_TD.T[by_label],
        ~is_ignored_TD.T[by_label],
        row_N[group_G],
        label_N[group_G],
    )


def confidence_of(box: Box) -> float:
    """The confidence of a box, else its score, else 1."""
    number = box.score if box.confidence is None else box.confidence
    return 1.0 if number is None else number


RECALLS = np.linspace(0.0, 1.0, 101)[::-1]
MAX_WORK = 50_000_000  # boxes times resamples times thresholds, which takes some seconds
MIN_RESAMPLES = 100

#: The value of each label, from the weights of the images and the counts of true boxes.
LabelValues = Callable[[np.ndarray, np.ndarray], np.ndarray]


def measure_ap(rows: Sequence[JoinedRow]) -> list[Measure]:
    """COCO's AP and AR, and precision, recall and F1 at an IoU of 0.5; crowds do not count."""
    matches = match_boxes(rows)
    every = matches[""]
    is_counted_D = every.is_counted_DT[:, 0]
    is_right_D = every.is_true_DT[:, 0] & is_counted_D
    right_N = np.bincount(every.row_D[is_right_D], minlength=len(rows))
    boxes_N = np.bincount(every.row_D[is_counted_D], minlength=len(rows))
    true_N = np.array([len(row.true_boxes) for row in rows])
    return [
        *average_precisions(matches),
        ratio("precision@0.5", right_N, boxes_N),
        ratio("recall@0.5", right_N, true_N),
        ratio("f1@0.5", 2 * right_N, boxes_N + true_N),
    ]


AP = Metric("boxes", measure_ap)


@dataclass(frozen=True)
class MeanOverLabels:
    """The mean over labels with true boxes; `work` is the cost of a resample.

    Precision `is_biased`: images that a resample repeats raise it at many recalls.
    """

    name: str
    matches: Matches
    of_labels: Callable[[Matches], LabelValues]
    work: int
    is_biased: bool = False

    @property
    def max_resamples(self) -> int:
        return min(RESAMPLES, max(MIN_RESAMPLES, MAX_WORK // max(1, self.work)))

    def by_image(self, image_N: np.ndarray, images: int) -> Self:
        return replace(self, matches=self.matches.by_image(image_N))

    def values(self, weights: Iterable[np.ndarray]) -> np.ndarray:
        values = self.of_labels(self.matches)
        row, label = self.matches.true_row_G, self.matches.true_label_G
        means = []
        for weight_U in weights:
            true_L = np.bincount(label, weight_U[row], self.matches.labels)
            value_L = values(weight_U, np.maximum(true_L, 1))[true_L > 0]
            means.append(value_L.mean() if len(value_L) else math.nan)
        return np.array(means)


def average_precisions(matches: dict[str, Matches]) -> list[MeanOverLabels]:
    """COCO's twelve values: AP and AR over the thresholds, at some of them, and by size.

    As in COCO, boxes whose label has no true box do not count, and neither do all but the most
    confident boxes of a label in a row.
    """
    every = matches[""]
    true_L = np.bincount(every.true_label_G, minlength=every.labels)
    is_labelled_D = (true_L[every.label_D] > 0) & (every.rank_D < MAX_BOXES)
    work = int(is_labelled_D.sum() + 300 * np.count_nonzero(true_L))

    def measure(name: str, size: str, values: Callable[..., LabelValues], n: int) -> MeanOverLabels:
        return MeanOverLabels(name, matches[size], values, work * n, name.startswith("ap"))

    at = {name: slice(column, column + 1) for name, column in (("ap50", 0), ("ap75", 5))}
    sizes = [*SIZES][1:]
    return [
        measure("ap", "", label_precisions, len(IOUS)),
        *(measure(name, "", partial(label_precisions, ious=at[name]), 1) for name in at),
        *(measure(f"ap_{size}", size, label_precisions, len(IOUS)) for size in sizes),
        *(measure(f"ar@{n}", "", partial(label_recalls, max_boxes=n), 1) for n in (1, 10, 100)),
        *(measure(f"ar_{size}", size, label_recalls, 1) for size in sizes),
    ]


def label_precisions(matches: Matches, ious: slice = slice(None)) -> LabelValues:
    """The function for the mean precision of each label at 101 recalls, over some thresholds."""
    kept = np.flatnonzero(matches.rank_D < MAX_BOXES)
    row_D, label_D = matches.row_D[kept], matches.label_D[kept]
    is_counted_TD = matches.is_counted_DT[kept][:, ious].T
    is_right_TD = matches.is_true_DT[kept][:, ious].T & is_counted_TD
    limits = np.searchsorted(label_D, np.arange(matches.labels + 1))

    def values(weight_U: np.ndarray, true_L: np.ndarray) -> np.ndarray:
        weight_D = weight_U[row_D]
        mean_TL = np.zeros((len(is_counted_TD), matches.labels))
        for label, own in enumerate(starmap(slice, pairwise(limits))):
            right_TD = np.cumsum(weight_D[own] * is_right_TD[:, own], axis=1)
            counted_TD = np.cumsum(weight_D[own] * is_counted_TD[:, own], axis=1)
            precision_TD = right_TD / (counted_TD + np.spacing(1))
            # the highest precision at this recall or a higher one
            best_TD = np.maximum.accumulate(precision_TD[:, ::-1], axis=1)[:, ::-1]
            for threshold, recall_D in enumerate(right_TD / true_L[label]):
                at_recalls = np.searchsorted(recall_D, RECALLS)
                mean_TL[threshold, label] = np.append(best_TD[threshold], 0)[at_recalls].mean()
        mean_L: np.ndarray = mean_TL.mean(axis=0)
        return mean_L

    return values


def label_recalls(matches: Matches, max_boxes: int = MAX_BOXES) -> LabelValues:
    """The function for the mean recall of each label, with at most `max_boxes` boxes per row."""
    is_right_DT = matches.is_true_DT & matches.is_counted_DT
    share_D = is_right_DT.mean(axis=1) * (matches.rank_D < max_boxes)
    right = np.flatnonzero(share_D)
    row, label, share = matches.row_D[right], matches.label_D[right], share_D[right]

    def values(weight_U: np.ndarray, true_L: np.ndarray) -> np.ndarray:
        recall_L: np.ndarray = np.bincount(label, weight_U[row] * share, matches.labels) / true_L
        return recall_L

    return values


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
