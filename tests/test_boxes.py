"""Boxes: clipping, lists that other programs wrote, thresholds and non-maximum suppression."""

import math
import re

import pytest

from pgcli.boxes import BoxFilter, clipped
from pgcli.records import Box
from pgcli.rows import box_to_dict, read_boxes

NAN = math.nan
CAT = {"label": "cat", "xmin": 1, "ymin": 2.5, "xmax": 30, "ymax": 40}


@pytest.mark.parametrize(
    ("corners", "part"),
    [
        ((1, 2, 30, 40), (1, 2, 30, 40)),
        ((-5, -0.5, 70, 50), (0, 0, 64, 48)),
        ((60, 40, 70, 41), (60, 40, 64, 41)),
        ((64, 0, 70, 48), None),
        ((0, -9, 64, 0), None),
        ((30, 0, 30, 48), None),
        ((30, 9, 20, 48), None),
    ],
)
def test_boxes_are_clipped_to_their_image(corners, part):
    assert clipped(corners, (64, 48)) == part


def test_boxes_of_a_row_are_read_as_they_were_written():
    box = Box("cat", 1.5, 2.0, 30.0, 40.0, 0.25, 0.5)
    assert read_boxes([box_to_dict(box)]) == (box,)
    assert read_boxes([CAT | {"more": 1}]) == (Box("cat", 1, 2.5, 30, 40, None, None),)
    assert read_boxes([]) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("boxes", "boxes is not a list of objects with label, xmin, ymin, xmax, ymax"),
        ([CAT, "cat"], "boxes[1] is not an object with a label"),
        ([CAT | {"label": None}], "boxes[0] is not an object with a label"),
        ([CAT | {"ymax": math.nan}], "boxes[0]: ymax is not a number"),
        ([CAT, CAT | {"xmin": True}], "boxes[1]: xmin is not a number"),
        ([CAT | {"xmin": 10**400}], "boxes[0]: xmin is not a number"),
    ],
)
def test_errors_name_the_box_and_its_fault(value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_boxes(value)


def box(label="cat", left=0.0, *, score=0.5, confidence=0.5, width=10.0):
    return Box(label, left, 0.0, left + width, 10.0, score, confidence)


def test_thresholds_keep_boxes_at_and_above_them():
    boxes = [box(score=0.2, confidence=0.9), box(score=0.8, confidence=0.4)]
    assert BoxFilter(0.4).kept(boxes) == [0, 1]
    assert BoxFilter(0.41).kept(boxes) == [0]
    assert BoxFilter(0.91).kept(boxes) == []


def test_box_without_a_number_is_kept_by_its_threshold():
    unknown = box(score=None, confidence=None)
    assert BoxFilter(0.9).kept([unknown]) == [0]
    assert BoxFilter(0.9).kept([box(score=0.5, confidence=None)]) == [0]  # no threshold on scores


def test_nms_keeps_the_most_confident_of_overlapping_boxes_of_a_label():
    boxes = [box(confidence=0.4), box(left=1, confidence=0.8), box("dog"), box(left=9)]
    assert BoxFilter(nms=0.5).kept(boxes) == [1, 2, 3]
    assert BoxFilter(nms=0.0).kept(boxes) == [1, 2]  # the last overlaps the second by a column
    assert BoxFilter(nms=1.0).kept(boxes) == [0, 1, 2, 3]


def test_nms_compares_with_kept_boxes_only():
    """A box that is left out does not remove others."""
    chain = [box(left=0, confidence=0.9), box(left=4, confidence=0.8), box(left=8, confidence=0.7)]
    assert BoxFilter(nms=0.3).kept(chain) == [0, 2]


def test_of_equal_boxes_the_first_is_kept():
    assert BoxFilter(nms=0.5).kept([box(), box()]) == [0]


@pytest.mark.parametrize(
    "value",
    [None, 5, {}, {"label": "cat", "xmin": "a"}, {"label": 5}, {"label": "cat", "xmin": NAN}],
)
def test_values_that_are_not_boxes_stay_in_a_row(value):
    row = {"boxes": [value], "masks": [None], "id": "a"}
    assert BoxFilter(0.5, 0.5).row(row) == row


def test_masks_of_a_row_are_dropped_with_their_boxes():
    boxes = [
        {"label": "a", "xmin": 0, "ymin": 0, "xmax": 9, "ymax": 9, "confidence": s} for s in (0, 1)
    ]
    row = {"boxes": boxes, "masks": ["first", "second"]}
    assert BoxFilter(0.5).row(row) == {"boxes": boxes[1:], "masks": ["second"]}
    assert BoxFilter().row(row) is row
    assert BoxFilter(0.5).row({"boxes": None}) == {"boxes": None}
