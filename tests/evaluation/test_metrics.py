"""Tests exact match, IoU and detection scores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.evaluation.metrics import count_detections, exact_match, iou
from pgcli.records import Box


def box(xmin, ymin, xmax, ymax, label="cat", score=1.0):
    return Box(label, xmin, ymin, xmax, ymax, score)


def test_exact_match_ignores_case_and_whitespace():
    assert exact_match(["yes", " no\n", "Red", ""], ["yes", "no", "red", ""]) == 0.75


def test_exact_match_refuses_unequal_or_empty_lists():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        exact_match(["yes"], ["yes", "no"])
    with pytest.raises(ValueError, match="no answers"):
        exact_match([], [])


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


def test_detection_counts_are_summed_over_all_images():
    near, far = box(0, 0, 10, 10), box(50, 50, 60, 60)
    score = count_detections([[near], [near, far], []], [[near], [near], [far]])
    assert (score.right, score.found, score.true) == (2, 3, 3)
    assert score.precision == score.recall == score.f1 == pytest.approx(2 / 3)


def test_a_box_of_another_label_is_not_found():
    assert count_detections([[box(0, 0, 1, 1, "dog")]], [[box(0, 0, 1, 1, "cat")]]).right == 0


def test_one_true_box_is_found_once():
    score = count_detections([[box(0, 0, 10, 10), box(0, 0, 10, 9)]], [[box(0, 0, 10, 10)]])
    assert (score.precision, score.recall) == (0.5, 1.0)


def test_two_equal_true_boxes_are_found_twice():
    twice = [box(0, 0, 10, 10), box(0, 0, 10, 10)]
    assert count_detections([twice], [twice]).right == 2
    assert count_detections([twice[:1]], [twice]).right == 1


def test_box_of_the_highest_score_is_matched_first():
    truth = [box(0, 0, 10, 10), box(4, 0, 14, 10)]
    unsure = box(1.9, 0, 11.9, 10, score=0.1)  # on both, more on the first
    sure = box(0, 0, 6, 10, score=0.9)  # on the first alone
    assert count_detections([[unsure, sure]], [truth]).right == 2


@pytest.mark.parametrize(("threshold", "right"), [(0.5, 1), (0.51, 0)])
def test_box_at_the_threshold_is_a_match(threshold, right):
    score = count_detections([[box(0, 0, 10, 5)]], [[box(0, 0, 10, 10)]], threshold=threshold)
    assert score.right == right


def test_no_boxes_are_right_for_empty_images_only():
    assert count_detections([[]], [[]]).f1 == 1.0
    missed = count_detections([[]], [[box(0, 0, 1, 1)]])
    assert (missed.precision, missed.recall, missed.f1) == (1.0, 0.0, 0.0)


def test_different_numbers_of_images_are_refused():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        count_detections([[]], [[], []])
