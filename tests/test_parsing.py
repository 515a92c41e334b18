"""Boxes parsed from the spans of an answer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.parsing import SegmentedBox, boxes, segments
from pgcli.records import Box, Span


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


CODES = tuple(range(100, 116))


def codes(spans):
    return [segment.codes for segment in segments(spans, width=10, height=10)]


def test_corners_are_y_before_x_and_reach_the_far_edge():
    answer = [*corners(0, 341, 682, 1023), *map(mask, CODES), text(" cat")]
    found = segments(answer, width=300, height=600)
    assert found == (SegmentedBox(Box("cat", 100.0, 0.0, 300.0, 400.0, 1.0), CODES),)


def test_score_is_the_product_of_four_probabilities():
    answer = [location(value, p) for value, p in zip((1, 2, 3, 4), (0.5, 0.5, 0.8, 1), strict=True)]
    (box,) = boxes([*answer, text(" cat")], width=10, height=10)
    assert box.score == pytest.approx(0.2)


BOX, OTHER, MASK = corners(1, 2, 3, 4), corners(5, 6, 7, 8), [*map(mask, CODES)]
GOOD = [*BOX, text(" good")]
#: What an answer has: its spans and its labels.
LABELS = {
    "nothing": ([], []),
    "two objects": ([*BOX, text(" cat ; "), *OTHER, text(" dog")], ["cat", "dog"]),
    "a label twice": ([*BOX, text(" cat ; "), *OTHER, text(" cat")], ["cat", "cat"]),
    "a label in two spans": ([*BOX, text("red"), text(" car;")], ["red car"]),
    "an incomplete label": ([*BOX, text(" red c")], ["red c"]),
    "text outside of groups": ([text("here: "), *BOX, text(" cat ; and more")], ["cat"]),
    "text like locations": ([text("<loc0001><loc0002><loc0003><loc0004> cat")], []),
    "y swapped": ([*corners(3, 2, 1, 4), text(" bad ; "), *GOOD], ["good"]),
    "x swapped": ([*corners(1, 4, 3, 2), text(" bad ; "), *GOOD], ["good"]),
    "no height": ([*corners(2, 2, 2, 4), text(" bad ; "), *GOOD], ["good"]),
    "no width": ([*corners(1, 2, 3, 2), text(" bad ; "), *GOOD], ["good"]),
    "a mask between corners": ([*BOX[:2], mask(1), *BOX[2:], text(" cat")], []),
    "a blank between corners": ([*BOX[:2], text(" "), *BOX[2:], text(" cat")], []),
    "cut before a label": ([*GOOD, text(" ; "), *OTHER], ["good"]),
    "cut in corners": ([*GOOD, text(" ; "), *OTHER[:3]], ["good"]),
    "cut in a label": ([*GOOD, text(" ; "), *OTHER, text(" ")], ["good"]),
}
LABELS |= {
    f"{count} locations": ([*map(location, range(count)), text(" bad ; "), *GOOD], ["good"])
    for count in (1, 2, 3, 5, 8)
}
LABELS |= {
    name: ([*BOX, text(f" {name} ;")], [name])
    for name in ("cat's toy (red)", "R&B", "赤い車", "a <b> c", "x, y: z", "🐈")
}
for token in ("<loc1024>", "<loc9999>", "<loc-001>", "<seg128>"):  # beyond the grid: text
    LABELS[f"{token} in corners"] = ([*BOX[:3], text(f"{token} dog ; "), *GOOD], ["good"])
    LABELS[f"{token} in a label"] = ([*BOX, text(f"{token} cat")], [f"{token} cat"])


@pytest.mark.parametrize("name", LABELS)
def test_answer_has_its_labels(name):
    spans, expected = LABELS[name]
    assert labels(spans) == expected


#: Answers with codes of masks: their spans, labels and masks.
MASKS = {
    "before the label": ([*BOX, *MASK, text(" cat")], ["cat"], [CODES]),
    "between blanks": ([*BOX, text(" "), *MASK, text("  cat ; ")], ["cat"], [CODES]),
    "after the label": ([*BOX, text(" cat "), *MASK], ["cat"], [None]),
    "in two runs": ([*BOX, *MASK[:8], text(" "), *MASK[8:], text(" cat")], ["cat"], [None]),
    "in two runs, no label": ([*BOX, *MASK[:8], text(" "), *MASK[8:]], [], []),
    "no label": ([*BOX, *MASK], [""], [CODES]),
    "no label, then a box": ([*BOX, *MASK, text(" ; "), *GOOD], ["", "good"], [CODES, None]),
    "cut": ([*BOX, *MASK, text(" cat ; "), *BOX, *MASK[:9]], ["cat"], [CODES]),
    "of some boxes": (
        [
            *(*BOX, *MASK, text(" cat ; "), *OTHER, text(" dog ; ")),
            *(*corners(3, 2, 1, 4), *MASK, text(" corners out of order ; ")),
            *(*BOX, *MASK[::-1], text(" cat")),
        ],
        ["cat", "dog", "cat"],
        [CODES, None, CODES[::-1]],
    ),
}
MASKS |= {
    f"{count} codes": ([*BOX, *map(mask, range(count)), text(" cat")], ["cat"], [None])
    for count in (0, 1, 15, 17, 32)
}


@pytest.mark.parametrize("name", MASKS)
def test_sixteen_codes_before_the_label_are_the_mask(name):
    spans, expected, masks = MASKS[name]
    assert (labels(spans), codes(spans)) == (expected, masks)


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
