"""Boxes from the pieces of an answer."""

import math
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.parsing import Segment, boxes, segments
from pgcli.records import Box, Span


def location(place, probability=1.0):
    return Span("location", f"<loc{place:04}>", place, probability)


def mask(place):
    return Span("mask", f"<seg{place:03}>", place)


def text(words):
    return Span("text", words)


def corners(ymin, xmin, ymax, xmax):
    return [location(place) for place in (ymin, xmin, ymax, xmax)]


def labels(pieces):
    return [box.label for box in boxes(pieces, width=10, height=10)]


def test_corners_come_y_before_x_and_reach_the_far_edge():
    found = boxes([*corners(0, 341, 682, 1023), text(" cat")], width=300, height=600)
    assert found == (Box("cat", 100.0, 0.0, 300.0, 400.0, 1.0),)


def test_several_objects_are_several_boxes_in_the_order_of_the_answer():
    answer = [*corners(1, 2, 3, 4), text(" cat ; "), *corners(5, 6, 7, 8), text(" dog")]
    assert labels(answer) == ["cat", "dog"]


def test_one_label_may_have_several_boxes():
    answer = [*corners(1, 2, 3, 4), text(" cat ; "), *corners(5, 6, 7, 8), text(" cat")]
    assert labels(answer) == ["cat", "cat"]


@pytest.mark.parametrize("label", ["cat's toy (red)", "R&B", "赤い車", "a <b> c", "x, y: z", "🐈"])
def test_a_label_is_kept_whole(label):
    assert labels([*corners(1, 2, 3, 4), text(f" {label} ;")]) == [label]


def test_a_label_may_follow_without_a_blank_or_in_several_pieces():
    assert labels([*corners(1, 2, 3, 4), text("red"), text(" car;")]) == ["red car"]


def test_the_score_is_the_product_of_the_four_probabilities():
    answer = [location(place, p) for place, p in zip((1, 2, 3, 4), (0.5, 0.5, 0.8, 1), strict=True)]
    (box,) = boxes([*answer, text(" cat")], width=10, height=10)
    assert box.score == pytest.approx(0.2)


def test_mask_tokens_between_corners_and_label_are_passed_over():
    assert labels([*corners(1, 2, 3, 4), *map(mask, range(16)), text(" cat")]) == ["cat"]


CODES = tuple(range(100, 116))


def codes(pieces):
    return [segment.codes for segment in segments(pieces, width=10, height=10)]


def test_sixteen_codes_between_corners_and_label_are_the_boxs_mask():
    answer = [*corners(0, 341, 682, 1023), *map(mask, CODES), text(" cat")]
    found = segments(answer, width=300, height=600)
    assert found == (Segment(Box("cat", 100.0, 0.0, 300.0, 400.0, 1.0), CODES),)


def test_each_box_has_its_own_mask_and_some_have_none():
    answer = [*corners(1, 2, 3, 4), *map(mask, CODES), text(" cat ; ")]
    answer += [*corners(5, 6, 7, 8), text(" dog ; ")]
    answer += [*corners(3, 2, 1, 4), *map(mask, range(16)), text(" corners out of order ; ")]
    answer += [*corners(1, 2, 3, 4), *map(mask, CODES[::-1]), text(" cat")]
    assert labels(answer) == ["cat", "dog", "cat"]
    assert codes(answer) == [CODES, None, CODES[::-1]]


@pytest.mark.parametrize("count", [0, 1, 15, 17, 32])
def test_another_number_of_codes_is_no_mask_but_the_box_is_kept(count):
    answer = [*corners(1, 2, 3, 4), *map(mask, range(count)), text(" cat")]
    assert labels(answer) == ["cat"]
    assert codes(answer) == [None]


def test_blanks_may_stand_around_the_codes():
    answer = [*corners(1, 2, 3, 4), text(" "), *map(mask, CODES), text("  cat ; ")]
    assert codes(answer) == [CODES]


def test_codes_after_the_label_or_in_two_runs_are_no_mask():
    where = corners(1, 2, 3, 4)
    assert codes([*where, text(" cat "), *map(mask, CODES)]) == [None]
    assert codes([*where, *map(mask, CODES[:8]), text(" "), *map(mask, CODES[8:])]) == []
    halves = [*map(mask, CODES[:8]), text(" "), *map(mask, CODES[8:])]
    assert codes([*where, *halves, text(" cat")]) == [None]


def test_a_whole_mask_without_a_label_is_kept_as_referring_checkpoints_answer():
    answer = [*corners(1, 2, 3, 4), *map(mask, CODES)]
    assert labels(answer) == [""]
    assert codes(answer) == [CODES]
    assert codes([*answer, text(" ; "), *corners(1, 2, 3, 4), text(" cat")]) == [CODES, None]


def test_a_mask_cut_short_before_its_label_loses_that_box_only():
    whole = [*corners(1, 2, 3, 4), *map(mask, CODES), text(" cat ; ")]
    assert codes([*whole, *corners(1, 2, 3, 4), *map(mask, CODES[:9])]) == [CODES]


@pytest.mark.parametrize(
    "places",
    [(3, 2, 1, 4), (1, 4, 3, 2), (2, 2, 2, 4), (1, 2, 3, 2)],
    ids=["y swapped", "x swapped", "no height", "no width"],
)
def test_corners_out_of_order_are_dropped_and_their_neighbours_kept(places):
    answer = [*corners(*places), text(" bad ; "), *corners(1, 2, 3, 4), text(" good")]
    assert labels(answer) == ["good"]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_a_run_of_other_than_four_locations_is_dropped_with_its_label(count):
    answer = [*map(location, range(count)), text(" bad ; "), *corners(1, 2, 3, 4), text(" good")]
    assert labels(answer) == ["good"]


def test_a_mask_or_a_blank_amid_the_corners_breaks_them():
    first = corners(1, 2, 3, 4)
    for between in (mask(1), text(" ")):
        assert labels([*first[:2], between, *first[2:], text(" cat")]) == []


def test_an_answer_cut_before_its_label_loses_that_box_only():
    whole = [*corners(1, 2, 3, 4), text(" cat ; ")]
    assert labels([*whole, *corners(5, 6, 7, 8)]) == ["cat"]
    assert labels([*whole, *corners(5, 6, 7, 8)[:3]]) == ["cat"]
    assert labels([*whole, *corners(5, 6, 7, 8), text(" ")]) == ["cat"]


def test_a_label_cut_short_is_kept_as_far_as_it_came():
    assert labels([*corners(1, 2, 3, 4), text(" red c")]) == ["red c"]


def test_text_before_the_first_location_and_after_the_separator_is_no_label():
    assert labels([text("here: "), *corners(1, 2, 3, 4), text(" cat ; and more")]) == ["cat"]


def test_text_that_spells_a_location_is_text():
    assert labels([text("<loc0001><loc0002><loc0003><loc0004> cat")]) == []


@pytest.mark.parametrize("spelled", ["<loc1024>", "<loc9999>", "<loc-001>", "<seg128>"])
def test_a_place_beyond_the_grid_is_no_place(spelled):
    whole = [*corners(1, 2, 3, 4), text(" cat ; ")]
    assert labels([*corners(1, 2, 3, 4)[:3], text(f"{spelled} dog ; "), *whole]) == ["cat"]
    assert labels([*corners(1, 2, 3, 4), text(f"{spelled} cat")]) == [f"{spelled} cat"]


def test_an_answer_of_thousands_of_boxes_without_an_end_is_read_at_once():
    one = [*corners(1, 2, 3, 4), *map(mask, CODES), text(" cat ; ")]
    answer = [*one * 5000, *corners(1, 2, 3, 4)[:3]]
    started = perf_counter()
    assert labels(answer) == ["cat"] * 5000
    assert perf_counter() - started < 2


def test_no_pieces_are_no_boxes():
    assert boxes([], width=10, height=10) == ()


pieces = st.lists(
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
# each piece several times over: four locations and sixteen codes do not come by chance
pieces |= st.builds(
    lambda found, times: [piece for piece, n in zip(found, times, strict=False) for _ in range(n)],
    pieces,
    runs,
)


@given(pieces, st.integers(1, 20_000), st.integers(1, 20_000))
def test_any_answer_at_all_gives_only_boxes_inside_the_picture(pieces, width, height):
    for box in boxes(pieces, width=width, height=height):
        assert 0 <= box.xmin < box.xmax <= width
        assert 0 <= box.ymin < box.ymax <= height
        assert 0 <= box.score <= 1
        assert box.label == box.label.strip()
        assert ";" not in box.label


@given(pieces)
def test_any_answer_at_all_has_a_label_or_a_mask_for_each_of_its_boxes(pieces):
    found = segments(pieces, width=10, height=10)
    assert tuple(segment.box for segment in found) == boxes(pieces, width=10, height=10)
    for segment in found:
        assert segment.codes is None or len(segment.codes) == 16
        assert segment.codes or segment.box.label


spans = st.lists(st.integers(0, 1023), min_size=2, max_size=2, unique=True).map(sorted)
names = st.text("abc'()-é猫 ", min_size=1).map(str.strip).filter(bool)


@given(st.lists(st.tuples(names, spans, spans), max_size=8))
def test_every_well_formed_answer_is_read_back(objects):
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
def test_every_well_formed_segmentation_is_read_back(objects):
    answer = []
    for name, drawn in objects:
        answer += [*corners(1, 2, 3, 4), *map(mask, drawn or ()), text(f" {name} ; ")]
    assert list(zip(labels(answer), codes(answer), strict=True)) == objects
