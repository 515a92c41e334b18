"""Average precision equals that of pycocotools; overlaps, and matches at one threshold."""

import contextlib
import io
import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from pgcli.boxes import iou
from pgcli.evaluation.box_metrics import (
    MeanOverLabels,
    average_precisions,
    match_boxes,
    measure_ap,
)
from pgcli.evaluation.measures import JoinedRow, estimates, value_of
from pgcli.labels.labelled_image import LabelledImage, LabelledObject
from pgcli.records import Box


def official(rows: list[JoinedRow]) -> list[float]:
    """The twelve values of pycocotools; NaN where it has -1."""
    labels = sorted({box.label for row in rows for box in [*row.truth.boxes, *row.boxes]})
    true: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        answered = [LabelledObject(box) for box in row.boxes]
        for into, objects in ((true, row.truth.objects), (found, answered)):
            for one in objects:
                box = one.box
                sides = [box.xmin, box.ymin, box.xmax - box.xmin, box.ymax - box.ymin]
                known = {"image_id": number, "category_id": labels.index(box.label), "bbox": sides}
                known |= {"area": one.object_area, "iscrowd": int(one.is_crowd)}
                score = {"score": box.confidence} if into is found else {}
                into.append(known | score | {"id": len(into) + 1})
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": number} for number in range(len(rows))],
            "categories": [{"id": n, "name": label} for n, label in enumerate(labels)],
            "annotations": true,
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(one) if one > -1 else float("nan") for one in evaluation.stats]


def boxes(random: np.random.Generator, count: int) -> tuple[Box, ...]:
    """Boxes of all sizes on a coarse grid, so that many overlap and are equally confident."""
    left, top = random.integers(0, 6, (2, count)) * 5.0
    width, height = random.integers(2, 8, (2, count)) * 5.0 * random.choice([1, 1, 4], count)
    labels = random.choice(["cat", "dog", "red car"], count)
    confidence = random.integers(0, 8, count) / 8
    return tuple(
        Box(str(labels[n]), left[n], top[n], left[n] + width[n], top[n] + height[n], 0.5, c)
        for n, c in enumerate(confidence.tolist())
    )


def truth_of(
    boxes: Sequence[Box], crowds: Sequence[Box] = (), areas: Sequence[float] = ()
) -> LabelledImage:
    objects = [LabelledObject(box, area=area) for box, area in zip_longest(boxes, areas)]
    apart = [LabelledObject(box, is_crowd=True) for box in crowds]
    return LabelledImage(objects=(*objects, *apart))


def sample(seed: int, images: int, *, crowds: bool) -> list[JoinedRow]:
    random = np.random.default_rng(seed)
    rows = []
    for number in range(images):
        true, found = boxes(random, random.integers(0, 6)), boxes(random, random.integers(0, 9))
        apart = boxes(random, random.integers(0, 2)) if crowds else ()
        areas = tuple(random.choice([200.0, 32.0**2, 5000.0, 9999.0], len(true)).tolist())
        truth = truth_of(true, apart, areas)
        rows.append(JoinedRow(str(number), "", {}, truth, (*found, *true[:2])))
    return rows


def coco_measures(rows: list[JoinedRow]) -> list[MeanOverLabels]:
    return average_precisions(match_boxes(rows))


@settings(max_examples=8)
@given(st.integers(0, 2**31), st.booleans())
def test_ap_equals_pycocotools(seed, crowds):
    rows = sample(seed, 12, crowds=crowds)
    if not any(row.truth.boxes for row in rows):
        return
    ours = [value_of(measure, 12) for measure in coco_measures(rows)]
    assert ours == pytest.approx(official(rows), abs=1e-9, nan_ok=True)


def test_weights_repeat_images():
    rows = sample(3, 8, crowds=True)
    weights = np.array([[2, 0, 1, 1, 3, 0, 1, 0]])
    repeated = [row for row, times in zip(rows, weights[0], strict=True) for _ in range(times)]
    weighted = [float(measure.values(weights)[0]) for measure in coco_measures(rows)]
    assert weighted == pytest.approx(official(repeated), abs=1e-9)


@pytest.mark.slow
def test_interval_of_ap_contains_it_where_resamples_are_biased():
    """Without the shift the interval of this AP, 0.25, is from 0.257 on."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(300):
        true = tuple(box_at(random, 40.0 * place, 0.0) for place in range(4))
        wrong = tuple(box_at(random, 40.0 * place, 50.0) for place in range(3))
        rows.append(JoinedRow(str(number), "", {}, truth_of(true), (*true[:2], *wrong)))
    (estimate,) = estimates(coco_measures(rows)[:1], np.arange(300))
    assert estimate.low < estimate.value < estimate.high


def box_at(random: np.random.Generator, left: float, top: float) -> Box:
    """A box of one of many labels, with any confidence."""
    label = str(random.integers(30))
    return Box(label, left, top, left + 30, top + 30, 1.0, float(random.random()))


def test_selected_rows_have_their_own_ap():
    rows = sample(9, 20, crowds=False)
    chosen, image = np.flatnonzero(np.arange(20) % 3), np.full(20, -1)
    image[chosen] = np.arange(len(chosen))
    own = coco_measures([rows[number] for number in chosen])
    for measure, alone in zip(coco_measures(rows), own, strict=True):
        value = value_of(measure.by_image(image, len(chosen)), len(chosen))
        assert value == pytest.approx(value_of(alone, len(chosen)), nan_ok=True)


def test_dense_images_have_the_ap_of_pycocotools():
    """More boxes of a label than COCO counts."""
    random = np.random.default_rng(5)
    true, found = boxes(random, 400), boxes(random, 900)
    truth = truth_of(true)
    rows = [JoinedRow("0", "", {}, truth, (*found, *true)), *sample(5, 3, crowds=True)]
    ours = [value_of(measure, 4) for measure in coco_measures(rows)]
    assert ours == pytest.approx(official(rows), abs=1e-9, nan_ok=True)


# --- boxes at one threshold


def box(xmin, ymin, xmax, ymax, label="cat", score=1.0):
    return Box(label, xmin, ymin, xmax, ymax, score)


def test_iou_is_intersection_over_union():
    assert iou(box(0, 0, 2, 2), box(1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert iou(box(0, 0, 2, 2), box(0, 0, 2, 2)) == 1.0
    assert iou(box(0, 0, 2, 2), box(2, 0, 4, 2)) == 0.0
    assert iou(box(1, 1, 1, 1), box(1, 1, 1, 1)) == 0.0


sides = st.tuples(st.floats(0, 100), st.floats(1, 100)).map(lambda at: (at[0], at[0] + at[1]))
some_box = st.builds(lambda x, y: box(x[0], y[0], x[1], y[1]), sides, sides)


@given(some_box, some_box)
def test_iou_is_symmetric_and_between_0_and_1(one, other):
    assert iou(one, other) == iou(other, one)
    assert 0.0 <= iou(one, other) <= 1.0 + 1e-9


def right_boxes(found: list[Box], true: list[Box]) -> int:
    """How many boxes match at an IoU of 0.5."""
    row = JoinedRow("0", "", {}, truth_of(true), tuple(found))
    (recall,) = (m for m in measure_ap([row]) if m.name == "recall@0.5")
    return round(value_of(recall, 1) * len(true))


@pytest.mark.parametrize(
    ("found", "precision", "recall", "f1"),
    [
        ([(0, 0, 10, 10), (20, 20, 30, 30)], None, 0, 0),  # both inside the crowd
        ([(0, 0, 10, 10), (50, 0, 60, 10)], 1, 1, 1),
        ([(35, 0, 45, 10), (50, 0, 60, 10)], 1, 1, 1),  # half of it inside
        ([(36, 0, 46, 10), (50, 0, 60, 10)], 1 / 2, 1, 2 / 3),
    ],
)
def test_boxes_in_a_crowd_are_neither_right_nor_wrong(found, precision, recall, f1):
    crowd = truth_of((box(50, 0, 60, 10),), (box(0, 0, 40, 40),))
    row = JoinedRow("0", "", {}, crowd, tuple(box(*corners) for corners in found))
    values = {measure.name: value_of(measure, 1) for measure in measure_ap([row])}
    assert (values["recall@0.5"], values["f1@0.5"]) == pytest.approx((recall, f1))
    assert values["precision@0.5"] == pytest.approx(
        math.nan if precision is None else precision, nan_ok=True
    )


@pytest.mark.parametrize(("height", "right"), [(5, 1), (4.9, 0)])
def test_box_at_the_threshold_is_a_match(height, right):
    assert right_boxes([box(0, 0, 10, height)], [box(0, 0, 10, 10)]) == right
