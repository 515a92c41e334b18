"""Label Studio's regions: mirrored, painted, with texts; scores; skipped entries."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.exporting import read_rows
from tests.support.runs import Command

CAT = {"rectanglelabels": ["cat"]}
SIZE = {"original_width": 64, "original_height": 48, "to_name": "image"}
COUNTED = " skipped (first: task 1, result 1)"


@pytest.fixture(autouse=True)
def photos(workdir: Path) -> None:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 48)).save(name)


def region(kind: str, value: dict[str, Any], **more: Any) -> dict[str, Any]:
    return SIZE | {"type": kind, "value": value} | more


def rectangle(x: float, y: float, width: float, height: float, **more: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "width": width, "height": height} | CAT | more


def imported(
    cli: Command, *tasks: Any, key: str = "annotations", code: int = 0
) -> tuple[list[dict[str, Any]], str]:
    """The rows of tasks with these results, about a.png and b.png, and the standard error."""
    document = [
        {"data": {"image": name}, key: [{"result": results}]}
        for name, results in zip(("a.png", "b.png"), tasks, strict=False)
    ]
    return imported_document(cli, document, code=code)


def imported_document(
    cli: Command, document: Any, *words: str, code: int = 0
) -> tuple[list[dict[str, Any]], str]:
    Path("tasks.json").write_text(json.dumps(document))
    command = ("import", "tasks.json", "--from", "labelstudio", "-o", "truth.jsonl")
    exit_code, _, err = cli(*command, "--overwrite", *words)
    assert exit_code == code, err
    return read_rows("truth.jsonl") if code in (0, 3) else [], err


def corners(box: dict[str, Any]) -> list[float]:
    return [box[name] for name in ("xmin", "ymin", "xmax", "ymax")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [  # x = 25 % is 16 pixels, y = 25 % 12, width = 50 % 32, height = 25 % 12
        (rectangle(25, 25, 50, 25), [16, 12, 48, 24]),
        (rectangle(25, 25, 50, 25, rotation=360), [16, 12, 48, 24]),
        (rectangle(25, 50, 50, -25), [16, 12, 48, 24]),
        (rectangle(75, 25, -50, 25), [16, 12, 48, 24]),
        (rectangle(75, 50, -50, -25, rotation=None), [16, 12, 48, 24]),
        (rectangle(-25, -25, 50, 50), [0, 0, 16, 12]),
    ],
)  # fmt: skip
def test_rectangles_are_their_bounding_boxes(cli, value, expected):
    (row,), _ = imported(cli, [region("rectanglelabels", value)])
    (box,) = row["boxes"]
    assert corners(box) == pytest.approx(expected, rel=1e-5)


def test_ellipses_are_their_bounding_boxes(cli):
    value = {"x": 50, "y": 50, "radiusX": 25, "radiusY": 12.5, "ellipselabels": ["cat"]}
    (row,), _ = imported(cli, [region("ellipselabels", value)])
    assert corners(row["boxes"][0]) == [16, 18, 48, 30]


TYPE = "1 region of the type {}"
NOT_READ = [
    ("keypointlabels", {"x": 1, "y": 1, "width": 0.5, "keypointlabels": ["cat"]}, TYPE),
    ("rectanglelabels", rectangle(1, 1, 9, 9, rectanglelabels=[]), "1 region without a label"),
    ("rectangle", {"x": 1, "y": 1, "width": 9, "height": 9}, "1 region without a label"),
    ("brushlabels", {"brushlabels": ["cat"]}, TYPE),
    ("brushlabels", {"rle": [1, 2], "brushlabels": ["cat"]}, TYPE),
    ("bitmask", {"imageDataURL": "data:image/png;base64,AA"}, TYPE),
    ("vectorlabels", {"vertices": [{"x": 1, "y": 2}], "vectorlabels": ["cat"]}, TYPE),
    ("videorectangle", {"sequence": [], "labels": ["cat"]}, TYPE),
    ("polygonlabels", {"points": [[1, 1], [9, 9]], "polygonlabels": ["cat"]},
     "1 polygon with fewer than three points"),
    ("rectanglelabels", rectangle(10, 10, 20, 0), "1 box with no area in the image"),
    ("rectanglelabels", rectangle(25, 25, 50, 25, rotation=-33), "1 region with a rotation"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "counted"), NOT_READ)
def test_unread_regions_are_counted_and_make_no_row(cli, kind, value, counted):
    counted = counted.format(kind)
    seen = region("rectanglelabels", rectangle(25, 25, 50, 25))
    rows, err = imported(cli, [region(kind, value)], [seen])
    assert [row["id"] for row in rows] == ["b.png"]
    assert f"; {counted}{COUNTED}; 1 image without a row of boxes" in err
    rows, err = imported(cli, [region(kind, value), seen])
    assert [len(row["boxes"]) for row in rows] == [1]
    _, err = imported(cli, [region(kind, value)], code=2)
    assert f"no annotated image; {counted}{COUNTED}" in err
    assert "docs/reference/formats.md says what is read" in err


def test_regions_of_rotated_images_are_skipped(cli):
    value = region("rectanglelabels", rectangle(25, 25, 50, 25), image_rotation=360)
    assert len(imported(cli, [value])[0]) == 1
    _, err = imported(cli, [value | {"image_rotation": 90}], code=2)
    assert "1 region of images that were rotated in Label Studio skipped" in err


def test_results_of_one_id_are_one_region(cli):
    place = {"x": 25, "y": 25, "width": 50, "height": 25, "rotation": 0}
    other = place | {"x": 0}
    rows, err = imported(
        cli,
        [
            region("rectangle", place, id="r"),
            region("labels", place | {"labels": ["text", "line"]}, id="r"),
            region("textarea", place | {"text": ["TOTAL", " "]}, id="r"),
            region("choices", {"choices": ["printed"]}, id="r"),
            region("rating", place | {"rating": 4}, id="r"),
            region("textarea", other | {"text": "12.50"}, id="s"),
            {"type": "textarea", "value": {"text": ["a bill"]}, "id": "t"},
            {"type": "relation", "from_id": "r", "to_id": "s"},
        ],
        [region("textarea", other | {"text": ["only a text"]}, id="r")],
    )
    assert [(row["id"], row["answer"], row["region"]) for row in rows[1:]] == [
        ("a.png", "TOTAL", [16, 12, 48, 24]),
        ("a.png", "printed", [16, 12, 48, 24]),
        ("a.png", "12.50", [0, 12, 32, 24]),
        ("a.png", "a bill", None),
        ("b.png", "only a text", [0, 12, 32, 24]),
    ]
    assert [(box["label"], *corners(box)) for box in rows[0]["boxes"]] == [
        ("text", 16, 12, 48, 24),
        ("line", 16, 12, 48, 24),
    ]
    assert rows[0]["prompt"] == "detect line ; text"
    assert "2 results of other kinds skipped (first: task 1, result 1)" in err
    assert "1 image without a row of boxes" in err


def test_regions_that_are_fractions_are_an_error(cli):
    results = [region("rectanglelabels", rectangle(0.25, 0.5, 0.5, 0.25))]
    _, err = imported(cli, results, results, code=2)
    assert "tasks.json: the regions are fractions of the image, not percentages" in err
    large = region("rectanglelabels", rectangle(25, 50, 50, 25))
    first, second = imported(cli, results, [large])[0]
    assert corners(first["boxes"][0]) == [0.16, 0.24, 0.48, 0.36]
    assert corners(second["boxes"][0]) == [16, 24, 48, 36]


def test_one_id_at_two_positions_is_an_error(cli):
    boxes = [rectangle(25, 25, 50, 25), rectangle(0, 0, 25, 25)]
    _, err = imported(cli, [region("rectanglelabels", box, id="r") for box in boxes], code=2)
    assert "task 1, result 2 has the id of task 1, result 1, and another position" in err


def test_texts_of_regions_are_turned_with_a_stored_photograph(cli):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned to the right
    Image.new("RGB", (64, 48)).save("a.png", exif=exif)
    place = {"x": 0, "y": 25, "width": 50, "height": 50}
    (found,), err = imported(cli, [region("textarea", place | {"text": "TOTAL"})])
    assert (found["width"], found["height"], found["region"]) == (48, 64, [12, 0, 36, 32])
    assert "1 image annotated as stored" in err


def test_several_sizes_in_a_task_are_an_error(cli):
    other = {"original_width": 48, "original_height": 64}
    results = [
        region("rectanglelabels", rectangle(1, 1, 9, 9)),
        region("rectanglelabels", rectangle(1, 1, 9, 9), **other),
    ]
    _, err = imported(cli, results, code=2)
    assert "task 1 states several sizes of its image: 64 x 48 and 48 x 64" in err


@pytest.mark.parametrize("key", ["annotations", "predictions"])
def test_scores_are_confidences(cli, key):
    results = [
        region("rectanglelabels", rectangle(5 * number, 5, 10, 10), score=score)
        for number, score in enumerate([0.59, 1, None])
    ]
    (row,), _ = imported(cli, results, key=key)
    assert [box["confidence"] for box in row["boxes"]] == [0.59, 1, 1]
    assert [box["score"] for box in row["boxes"]] == [0.59, 1, 1]


@pytest.mark.parametrize("score", [59, -0.1, "59"])
def test_scores_above_1_are_an_error(cli, score):
    value = region("rectanglelabels", rectangle(5, 5, 10, 10), score=score)
    assert "task 1, result 1: score is" in imported(cli, [value], code=2)[1]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"img": "https://example.com/x/a.png?token=1&b=c.d"}, "a.png"),
        ({"picture": "/data/upload/3/0123abcd-a.png?x=1", "text": "b"}, "a.png"),
        ({"ocr": "/data/local-files/?d=a.png"}, "a.png"),
        ({"image": "https://example.com/x/b.png?size=9"}, "b.png"),
    ],
)
def test_addresses_with_a_query_name_an_image(cli, data, name):
    result = region("rectanglelabels", rectangle(25, 25, 50, 25))
    document = [{"data": data, "annotations": [{"result": [result]}]}]
    words = ("--image-prefix", "https://example.com/x/")
    (row,), _ = imported_document(cli, document, *words)
    assert row["image"] == name


def test_exports_of_other_kinds_and_of_several_images_are_named(cli):
    minimal = {"id": 1, "image": "a.png", "label": [rectangle(1, 1, 9, 9)]}
    for document in ([minimal], [{"image": "a.png", "choice": "x", "annotation_id": 7}]):
        _, err = imported_document(cli, document, code=2)
        assert "tasks.json has no annotated image; 1 task without annotations skipped" in err
    data = {"img": "a.png", "thumb": "b.png"}
    _, err = imported_document(cli, [{"data": data, "annotations": [{"result": []}]}], code=2)
    assert "task 1 has 2 images in its data, and none is called 'image'" in err
    value = rectangle(1, 1, 9, 9)
    results = [region("rectanglelabels", value, to_name=name) for name in ("left", "right")]
    _, err = imported(cli, results, code=2)
    assert "task 1 has regions of several images: left, right" in err
    value["rectanglelabels"] = ["a; b"]
    _, err = imported(cli, [region("rectanglelabels", value)], code=2)
    assert "hint: correct it in Label Studio, and export the project again" in err


def test_import_export_import_is_equal(cli):
    place = {"x": 25, "y": 25, "width": 50, "height": 25}
    triangle = {"points": [[10.3, 9.9], [80.7, 30.1], [33.3, 90.9]], "polygonlabels": ["dog"]}
    first, _ = imported(
        cli,
        [
            region("rectanglelabels", rectangle(25, 25, 50, 25), score=0.5),
            region("polygonlabels", triangle),
            region(
                "ellipselabels",
                {"x": 7, "y": 5, "radiusX": 9, "radiusY": 3, "ellipselabels": ["b"]},
            ),
            region("textarea", place | {"text": ["TOTAL", "12.50"]}, id="r"),
            {"type": "textarea", "value": {"text": ["a bill", ""]}},
        ],
        [region("keypoint", {"x": 1, "y": 1}), {"type": "choices", "value": {"choices": ["x"]}}],
    )
    assert [(one["id"], one["task"]) for one in first][-2:] == [
        ("a.png", "caption"),
        ("b.png", "caption"),
    ]
    for output in ("tasks.json", "again.json"):
        words = ("export", "truth.jsonl", "--to", "labelstudio", "-o", output, "--overwrite")
        assert cli(*words)[0] == 0
        code, _, err = cli(
            *("import", output, "--from", "labelstudio", "-o", "again.jsonl", "--overwrite")
        )
        assert code == 0, err
        code, out, err = cli("diff", "truth.jsonl", "again.jsonl")
        assert code == 0, out
