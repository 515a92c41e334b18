"""Boxes parsed from the spans of an answer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.parsing import SegmentedBox, boxes, segments
from pgcli.records import Box, Span
from tests.support.time_limits import processor_time_below


def location(value, probability=1.0):
    return Span("location", f"<loc{value:04}>", value, probability)


def mask(value):
    return Span("mask", f"<seg{value:03}>", value)


def text(words):
    return Span("text", words)


def corners(ymin, xmin, ymax, xmax):
    return [location(value) for value in (ymin, xmin, ymax, xmax)]


def labels(spans):
    return [box.label for box in boxes(spans, width=10, height=10)]


def test_corners_are_y_before_x_and_reach_the_far_edge():
    found = boxes([*corners(0, 341, 682, 1023), text(" cat")], width=300, height=600)
    assert found == (Box("cat", 100.0, 0.0, 300.0, 400.0, 1.0),)


def test_objects_are_boxes_in_the_order_of_the_answer():
    answer = [*corners(1, 2, 3, 4), text(" cat ; "), *corners(5, 6, 7, 8), text(" dog")]
    assert labels(answer) == ["cat", "dog"]


def test_one_label_may_have_several_boxes():
    answer = [*corners(1, 2, 3, 4), text(" cat ; "), *corners(5, 6, 7, 8), text(" cat")]
    assert labels(answer) == ["cat", "cat"]


@pytest.mark.parametrize("label", ["cat's toy (red)", "R&B", "赤い車", "a <b> c", "x, y: z", "🐈"])
def test_label_is_kept_whole(label):
    assert labels([*corners(1, 2, 3, 4), text(f" {label} ;")]) == [label]


def test_label_may_be_split_or_without_a_blank():
    assert labels([*corners(1, 2, 3, 4), text("red"), text(" car;")]) == ["red car"]


def test_score_is_the_product_of_four_probabilities():
    answer = [location(value, p) for value, p in zip((1, 2, 3, 4), (0.5, 0.5, 0.8, 1), strict=True)]
    (box,) = boxes([*answer, text(" cat")], width=10, height=10)
    assert box.score == pytest.approx(0.2)


def test_mask_tokens_are_not_part_of_the_label():
    assert labels([*corners(1, 2, 3, 4), *map(mask, range(16)), text(" cat")]) == ["cat"]


CODES = tuple(range(100, 116))


def codes(spans):
    return [segment.codes for segment in segments(spans, width=10, height=10)]


def test_sixteen_codes_before_the_label_are_the_mask():
    answer = [*corners(0, 341, 682, 1023), *map(mask, CODES), text(" cat")]
    found = segments(answer, width=300, height=600)
    assert found == (SegmentedBox(Box("cat", 100.0, 0.0, 300.0, 400.0, 1.0), CODES),)


def test_each_box_has_its_own_mask_or_none():
    answer = [*corners(1, 2, 3, 4), *map(mask, CODES), text(" cat ; ")]
    answer += [*corners(5, 6, 7, 8), text(" dog ; ")]
    answer += [*corners(3, 2, 1, 4), *map(mask, range(16)), text(" corners out of order ; ")]
    answer += [*corners(1, 2, 3, 4), *map(mask, CODES[::-1]), text(" cat")]
    assert labels(answer) == ["cat", "dog", "cat"]
    assert codes(answer) == [CODES, None, CODES[::-1]]


@pytest.mark.parametrize("count", [0, 1, 15, 17, 32])
def test_wrong_number_of_codes_keeps_the_box_without_mask(count):
    answer = [*corners(1, 2, 3, 4), *map(mask, range(count)), text(" cat")]
    assert labels(answer) == ["cat"]
    assert codes(answer) == [None]


def test_blanks_around_the_codes_are_ignored():
    answer = [*corners(1, 2, 3, 4), text(" "), *map(mask, CODES), text("  cat ; ")]
    assert codes(answer) == [CODES]


def test_codes_after_the_label_or_in_two_runs_are_ignored():
    where = corners(1, 2, 3, 4)
    assert codes([*where, text(" cat "), *map(mask, CODES)]) == [None]
    assert codes([*where, *map(mask, CODES[:8]), text(" "), *map(mask, CODES[8:])]) == []
    halves = [*map(mask, CODES[:8]), text(" "), *map(mask, CODES[8:])]
    assert codes([*where, *halves, text(" cat")]) == [None]


def test_mask_without_a_label_is_kept():
    answer = [*corners(1, 2, 3, 4), *map(mask, CODES)]
    assert labels(answer) == [""]
    assert codes(answer) == [CODES]
    assert codes([*answer, text(" ; "), *corners(1, 2, 3, 4), text(" cat")]) == [CODES, None]


def test_answer_cut_in_a_mask_loses_only_that_box():
    whole = [*corners(1, 2, 3, 4), *map(mask, CODES), text(" cat ; ")]
    assert codes([*whole, *corners(1, 2, 3, 4), *map(mask, CODES[:9])]) == [CODES]


@pytest.mark.parametrize(
    "values",
    [(3, 2, 1, 4), (1, 4, 3, 2), (2, 2, 2, 4), (1, 2, 3, 2)],
    ids=["y swapped", "x swapped", "no height", "no width"],
)
def test_box_with_corners_out_of_order_is_dropped(values):
    answer = [*corners(*values), text(" bad ; "), *corners(1, 2, 3, 4), text(" good")]
    assert labels(answer) == ["good"]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_run_of_other_than_four_locations_is_dropped(count):
    answer = [*map(location, range(count)), text(" bad ; "), *corners(1, 2, 3, 4), text(" good")]
    assert labels(answer) == ["good"]


def test_mask_or_blank_between_corners_breaks_them():
    first = corners(1, 2, 3, 4)
    for between in (mask(1), text(" ")):
        assert labels([*first[:2], between, *first[2:], text(" cat")]) == []


def test_answer_cut_before_a_label_loses_only_that_box():
    whole = [*corners(1, 2, 3, 4), text(" cat ; ")]
    assert labels([*whole, *corners(5, 6, 7, 8)]) == ["cat"]
    assert labels([*whole, *corners(5, 6, 7, 8)[:3]]) == ["cat"]
    assert labels([*whole, *corners(5, 6, 7, 8), text(" ")]) == ["cat"]


def test_incomplete_label_is_kept():
    assert labels([*corners(1, 2, 3, 4), text(" red c")]) == ["red c"]


def test_text_outside_a_group_is_not_a_label():
    assert labels([text("here: "), *corners(1, 2, 3, 4), text(" cat ; and more")]) == ["cat"]


def test_text_like_a_location_is_text():
    assert labels([text("<loc0001><loc0002><loc0003><loc0004> cat")]) == []


@pytest.mark.parametrize("token", ["<loc1024>", "<loc9999>", "<loc-001>", "<seg128>"])
def test_location_beyond_the_grid_is_text(token):
    whole = [*corners(1, 2, 3, 4), text(" cat ; ")]
    assert labels([*corners(1, 2, 3, 4)[:3], text(f"{token} dog ; "), *whole]) == ["cat"]
    assert labels([*corners(1, 2, 3, 4), text(f"{token} cat")]) == [f"{token} cat"]


def test_answer_of_thousands_of_boxes_is_parsed_fast():
    one = [*corners(1, 2, 3, 4), *map(mask, CODES), text(" cat ; ")]
    answer = [*one * 5000, *corners(1, 2, 3, 4)[:3]]
    with processor_time_below(4):
        assert labels(answer) == ["cat"] * 5000


def test_no_spans_make_no_boxes():
    assert boxes([], width=10, height=10) == ()


spans = st.lists(
    st.builds(
        Span,
        st.sampled_from(["text", "location", "location", "location", "mask"]),
        st.text(max_size=5) | st.sampled_from([" ; ", ";", " cat"]),
        st.none() | st.integers(0, 1023),
        st.floats(0, 1),
    ),
    max_size=40,
)
runs = st.lists(st.sampled_from([1, 1, 2, 4, 4, 4, 16, 16, 17]), min_size=40, max_size=40)
# spans are repeated, because four locations or sixteen codes in a row are improbable
spans |= st.builds(
    lambda found, times: [span for span, n in zip(found, times, strict=False) for _ in range(n)],
    spans,
    runs,
)


@given(spans, st.integers(1, 20_000), st.integers(1, 20_000))
def test_any_answer_gives_boxes_inside_the_image(spans, width, height):
    for box in boxes(spans, width=width, height=height):
        assert 0 <= box.xmin < box.xmax <= width
        assert 0 <= box.ymin < box.ymax <= height
        assert 0 <= box.score <= 1
        assert box.label == box.label.strip()
        assert ";" not in box.label


@given(spans)
def test_each_box_of_any_answer_has_a_label_or_a_mask(spans):
    found = segments(spans, width=10, height=10)
    assert tuple(segment.box for segment in found) == boxes(spans, width=10, height=10)
    for segment in found:
        assert segment.codes is None or len(segment.codes) == 16
        assert segment.codes or segment.box.label


spans = st.lists(st.integers(0, 1023), min_size=2, max_size=2, unique=True).map(sorted)
names = st.text("abc'()-é猫 ", min_size=1).map(str.strip).filter(bool)


@given(st.lists(st.tuples(names, spans, spans), max_size=8))
def test_well_formed_answer_parses_back(objects):
    answer = []
    for name, (ymin, ymax), (xmin, xmax) in objects:
        answer += [*corners(ymin, xmin, ymax, xmax), text(f" {name} ; ")]
    found = boxes(answer, width=1023, height=1023)
    assert [box.label for box in found] == [name for name, _, _ in objects]
    for box, (_, ys, xs) in zip(found, objects, strict=True):
        assert all(
            math.isclose(got, want, abs_tol=1e-9)
            for got, want in zip((box.ymin, box.ymax, box.xmin, box.xmax), (*ys, *xs), strict=True)
        )


masks = st.none() | st.lists(st.integers(0, 127), min_size=16, max_size=16).map(tuple)


@given(st.lists(st.tuples(names, masks), max_size=8))
def test_well_formed_segmentation_parses_back(objects):
    answer = []
    for name, drawn in objects:
        answer += [*corners(1, 2, 3, 4), *map(mask, drawn or ()), text(f" {name} ; ")]
    assert list(zip(labels(answer), codes(answer), strict=True)) == objects
