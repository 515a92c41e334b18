"""Tests areas and overlaps of boxes, and which boxes are right at one threshold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.evaluation.metrics.ap import is_right
from pgcli.iou import iou
from pgcli.records import Box


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


def test_a_box_of_another_label_is_not_found():
    assert is_right([box(0, 0, 1, 1, "dog")], [box(0, 0, 1, 1, "cat")]) == [False]


def test_one_true_box_is_found_once():
    found = [box(0, 0, 10, 10), box(0, 0, 10, 9)]
    assert is_right(found, [box(0, 0, 10, 10)]) == [True, False]


def test_two_equal_true_boxes_are_found_twice():
    twice = [box(0, 0, 10, 10), box(0, 0, 10, 10)]
    assert is_right(twice, twice) == [True, True]
    assert is_right(twice[:1], twice) == [True]


def test_box_of_the_highest_score_is_matched_first():
    truth = [box(0, 0, 10, 10), box(4, 0, 14, 10)]
    unsure = box(1.9, 0, 11.9, 10, score=0.1)  # on both, more on the first
    sure = box(0, 0, 6, 10, score=0.9)  # on the first alone
    assert is_right([unsure, sure], truth) == [True, True]


@pytest.mark.parametrize(("threshold", "right"), [(0.5, True), (0.51, False)])
def test_box_at_the_threshold_is_a_match(threshold, right):
    assert is_right([box(0, 0, 10, 5)], [box(0, 0, 10, 10)], threshold) == [right]
