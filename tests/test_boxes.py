"""Boxes: the part within an image, and lists of boxes that other programs wrote."""

import math
import re

import pytest

from pgcli.boxes import clipped
from pgcli.records import Box
from pgcli.rows import box_to_dict, read_boxes

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
