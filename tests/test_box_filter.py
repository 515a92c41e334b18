"""Boxes that are left out: below a threshold, and duplicates."""

import math

import pytest

from pgcli.box_filter import BoxFilter
from pgcli.records import Box

NAN = math.nan


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
