"""Boxes and masks drawn on an image: positions, colours and legible labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pgcli.records import Box, Mask
from pgcli.results import overlay
from pgcli.results.overlay import (
    PALETTE,
    LabelColours,
    draw_overlay,
    label_position,
    render_label,
    style_for,
)
from pgcli.rle import encode_mask

GREY = (90, 90, 90)


def grey(width, height):
    return Image.new("RGB", (width, height), GREY)


def box(label, *corners):
    return Box(label, *corners, score=0.9)


def changed(image):
    """The pixels that differ from the grey image: bool (height, width)."""
    return (np.asarray(image) != GREY).any(axis=-1)


def mask_of(inside):
    return Mask(tuple(range(16)), encode_mask(inside))


def test_box_is_drawn_as_an_outline_at_its_corners():
    before = grey(640, 480)
    after = draw_overlay(before, [box("", 100.4, 120, 299.5, 400)])
    colour, line = LabelColours().of(""), style_for(before.size).line_width
    assert after.getpixel((100, 250)) == after.getpixel((299, 250)) == colour
    assert after.getpixel((200, 120)) == after.getpixel((200, 399)) == colour
    assert not changed(after)[120 + line : 400 - line, 100 + line : 300 - line].any()
    assert not changed(before).any()
    far = changed(after)
    far[110:410, 90:310] = False
    assert not far.any()


@pytest.mark.parametrize("side", [1, 2, 16, 31, 64])
def test_boxes_are_drawn_on_the_smallest_images(side):
    after = draw_overlay(
        grey(side, side), [box("circle", 0, 0, side, side), box("dot", 0, 0, 0, 0)]
    )
    assert after.size == (side, side)
    assert changed(after).any()


def test_box_beyond_the_image_is_drawn_at_its_edge():
    after = draw_overlay(grey(100, 80), [box("", -20, -5, 130, 99)])
    assert changed(after)[0].all()
    assert changed(after)[-1].all()


def test_line_width_and_font_size_scale_with_the_image():
    pens = [style_for((side, side)) for side in (16, 224, 640, 2000, 8000)]
    assert pens == sorted(pens, key=lambda pen: (pen.line_width, pen.border_width, pen.font_size))
    assert pens[-1].font_size > 15 * pens[0].font_size
    assert pens[-1].line_width >= 20
    panorama = style_for((8000, 600))
    assert style_for((600, 600)).font_size < panorama.font_size < 600 / 8


def labels_of(monkeypatch, image, boxes):
    """The positions of the labels that `draw_overlay` draws."""
    positions = []

    def recorded(*arguments):
        positions.append(label_position(*arguments))
        return positions[-1]

    monkeypatch.setattr(overlay, "label_position", recorded)
    draw_overlay(image, boxes)
    return [label for label in positions if label is not None]


CORNERS = [(0, 0, 30, 30), (600, 0, 640, 20), (0, 460, 9, 480), (630, 470, 640, 480)]


@pytest.mark.parametrize("corners", [*CORNERS, (0, 0, 640, 480), (300, 200, 340, 240)])
def test_a_label_is_above_its_box_or_at_its_edge_inside_the_image(monkeypatch, corners):
    (label,) = labels_of(monkeypatch, grey(640, 480), [box("traffic light", *corners)])
    left, top, right, bottom = label
    assert 0 <= left < right <= 640
    assert 0 <= top < bottom <= 480
    assert (bottom if corners[1] >= 30 else top) == corners[1]


@given(st.lists(st.tuples(*[st.integers(0, 400)] * 4), min_size=1, max_size=25))
def test_labels_stay_in_the_image_and_do_not_overlap(corners):
    labels = []
    for x, y, xx, yy in corners:
        frame = (min(x, xx), min(y, yy), max(x, xx) + 1, max(y, yy) + 1)
        label = label_position(frame, (60, 15), (401, 401), labels)
        labels += [] if label is None else [label]
    covered = [{(x, y) for x in range(a, c) for y in range(b, d)} for a, b, c, d in labels]
    assert labels
    assert len(set().union(*covered)) == sum(map(len, covered))
    assert all(0 <= a < c <= 401 and 0 <= b < d <= 401 for a, b, c, d in labels)


def test_small_boxes_have_no_labels_if_labels_would_hide_the_image(monkeypatch):
    boxes = [box(f"label {n}", n, 3 * n, 64, 64) for n in range(12)]
    texts = []
    monkeypatch.setattr(overlay.Image.Image, "paste", lambda *arguments: texts.append(arguments))
    draw_overlay(grey(64, 64), boxes)
    assert 0 < len(texts) // 2 < 12


def test_a_label_is_truncated_to_the_width():
    whole = render_label("a very long label", 20, 1000)
    cut = render_label("a very long label", 20, 80)
    assert cut.width <= 80 < whole.width
    assert render_label("a very long label", 20, 3) is None
    assert render_label("x" * 10_000_000, 20, 500).width <= 500
    assert render_label(" \n ", 20, 500) is None


def same(one, other):
    return one.size == other.size and one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("x\x1b[2Jy", "x\\x1b[2Jy"),
        ("a\nb\x00", "a\\nb\\x00"),
        ("gpj\u202etac", "gpj\\u202etac"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_control_characters_of_a_label_are_escaped(label, shown):
    assert same(render_label(label, 20, 900), render_label(shown, 20, 900))


def test_a_label_has_the_same_colour_in_every_run():
    assert LabelColours().of("red car") == LabelColours().of(" Red Car ") == (136, 34, 85)


@given(st.lists(st.text(), max_size=len(PALETTE)), st.randoms())
def test_listed_labels_have_distinct_colours_while_any_are_left(labels, random):
    plain = {label.strip().casefold() for label in labels}
    colours = LabelColours(labels)
    assert len({colours.of(label) for label in plain}) == len(plain)
    random.shuffle(labels)
    again = LabelColours(labels)
    assert all(again.of(label) == colours.of(label) for label in plain)


def test_a_mask_is_half_transparent():
    y, x = np.mgrid[:300, :400]
    inside = (x - 200) ** 2 + (y - 150) ** 2 < 100**2
    after = draw_overlay(grey(400, 300), [box("cat", 90, 40, 310, 260)], [mask_of(inside)])
    colour = np.array(LabelColours().of("cat"))
    middle = np.asarray(after)[150, 200]
    assert (np.abs(middle - (0.55 * np.array(GREY) + 0.45 * colour)) <= 2).all()
    outside = changed(after) & ~inside
    outside[:50] = outside[250:] = False  # the box and its label
    assert not outside[:, 100:300].any()


def test_masks_belong_to_their_boxes_and_empty_masks_change_nothing():
    inside = np.zeros((100, 100), dtype=bool)
    inside[40:60, 40:60] = True
    boxes = [box("", 0, 0, 20, 20), box("cat", 30, 30, 70, 70), box("", 80, 80, 90, 90)]
    masks = [None, mask_of(inside), Mask(tuple(range(16)), None)]
    after = draw_overlay(grey(100, 100), boxes, masks)
    bare = draw_overlay(grey(100, 100), boxes)
    assert after.getpixel((50, 50)) != bare.getpixel((50, 50)) == GREY
    assert not (np.asarray(after) != np.asarray(bare))[~inside].any()
    empty = [mask_of(np.zeros((100, 100), dtype=bool))] * 3
    assert same(draw_overlay(grey(100, 100), boxes, empty), bare)
