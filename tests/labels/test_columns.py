"""Labelled rows are read in the shapes in which data sets have them."""

import json
from math import nan

import pytest

from pgcli.errors import UsageError
from pgcli.labels.columns import LabelColumns, LabelReader, class_names

CORNERS = {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}
CLASSES = {"label": ("cat", "dog")}


def read(row, *, is_csv=False):
    reader = LabelReader(LabelColumns(), CLASSES, is_csv)
    return reader.read(reader.fields(row), "m, row 1")


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"answers": ["a", None, "b"]}, ("a", "b")),
        ({"answers": [{"answer": "a", "answer_id": 1}, {"answer": "b"}]}, ("a", "b")),
        ({"answers": {"text": ["a", "b"], "answer_start": [0, 5]}}, ("a", "b")),
        ({"answers": [{"text": "a"}, {"answer": ["b"]}]}, ("a", "b")),
        ({"answers": [{"value": "a"}]}, ()),
        ({"answers": '["a", "b"]'}, ('["a", "b"]',)),
        ({"suffix": "[]"}, ("[]",)),
        ({"suffix": '[{"answer": "a"}]'}, ('[{"answer": "a"}]',)),
        ({"answers": ["[1, 2]"]}, ("[1, 2]",)),
        ({"answer": "[unclear]"}, ("[unclear]",)),
        ({"answer": nan, "label": "b"}, ("b",)),
        ({"suffix": nan}, ()),
        ({"label": 1}, ("dog",)),
        ({"label": [1, 0]}, ("dog", "cat")),
        ({"label": -1}, ()),
    ],
)
def test_answers_of_every_shape_are_read(row, answers):
    assert read(row).answers == answers


@pytest.mark.parametrize("name", ["suffix", "answer", "label", "caption", "text"])
@pytest.mark.parametrize("text", ['["cat", "dog"]', "[1, 2]", "[]", '[""]', "[unclear]"])
def test_cell_of_csv_is_text_whatever_it_looks_like(name, text):
    assert read({name: text}, is_csv=True).answers == (text,)


@pytest.mark.parametrize("name", ["answers", "captions", "texts"])
def test_cell_of_csv_is_a_list_where_its_header_says_so(name):
    assert read({name: ' ["a", "b"]'}, is_csv=True).answers == ("a", "b")
    assert read({name: "[unclear]"}, is_csv=True).answers == ("[unclear]",)
    assert read({name: " "}, is_csv=True).answers == ()


@pytest.mark.parametrize(
    ("row", "labels"),
    [
        ({"label": 1, **CORNERS}, ["dog"]),
        ({"label": None, **CORNERS}, [""]),
        (CORNERS, [""]),
        ({"label": "x", **dict.fromkeys(CORNERS, nan)}, []),
        ({"label": "x", **dict.fromkeys(CORNERS)}, []),
    ],
)
def test_corners_of_a_row_are_a_box_with_its_label(row, labels):
    assert [box.label for box in read(row).boxes] == labels


def box(*corners: float) -> dict[str, object]:
    return {"label": "cat", **dict(zip(CORNERS, corners, strict=True))}


@pytest.mark.parametrize(
    "row",
    [
        {"boxes": [box(0.1, 0.2, 0.5, 0.75), box(0, 0, 1, 1)]},
        {"boxes": json.dumps([box(0.1, 0.2, 0.5, 0.75)])},
        box(0.1, 0.2, 0.5, 0.75),
    ],
)
def test_boxes_that_are_fractions_are_an_error(row):
    with pytest.raises(UsageError, match="m, row 1: the boxes are fractions of the image"):
        read(row, is_csv=isinstance(row.get("boxes"), str))


def test_boxes_in_text_are_an_error_outside_of_csv():
    text = json.dumps([box(2, 2, 9, 9)])
    assert len(read({"boxes": text}, is_csv=True).boxes or ()) == 1
    with pytest.raises(UsageError, match="boxes is not a list of objects"):
        read({"boxes": text})


@pytest.mark.parametrize("first", [[], [box(0.1, 0.2, 0.5, 7)], [box(0, 0, 1, 1), box(0, 0, 9, 9)]])
def test_small_boxes_after_boxes_in_pixels_are_read(first):
    reader = LabelReader()
    reader.read({"boxes": [box(2, 2, 9, 9)]}, "m, row 1")
    for boxes in (first, [box(0, 0, 1, 1)]):
        assert len(reader.read({"boxes": boxes}, "m, row 2").boxes or ()) == len(boxes)


def test_incomplete_corners_are_an_error():
    with pytest.raises(UsageError, match=r"m, row 1: boxes\[0\]: ymin is not a number"):
        read({"label": "x", **CORNERS, "ymin": nan})


@pytest.mark.parametrize(
    "feature",
    [
        {"_type": "ClassLabel", "names": ["cat"]},
        {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": ["cat"]}},
        [{"_type": "ClassLabel", "names": ["cat"]}],
    ],
    ids=["one", "Sequence", "list"],
)
def test_names_of_classes_are_read_also_in_lists(feature):
    features = {"label": feature, "objects": [], "text": {"_type": "Value", "dtype": "string"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    assert class_names(metadata) == {"label": ("cat",)}
