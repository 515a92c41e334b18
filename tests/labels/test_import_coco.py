"""COCO: a second import of an export is equal to the first, and pycocotools reads the export."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pycocotools.coco import COCO

from tests.support.awkward import STORED, UPRIGHT, photograph
from tests.support.exporting import read_rows

pytestmark = pytest.mark.usefixtures("workdir")

SQUARE = [8, 4, 28, 4, 28, 14, 8, 14]
RUNS = {"size": [48, 64], "counts": [388, 10, 38, 10, 2626]}
CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}, {"id": 9, "name": "unused"}]


def document(*annotations: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Four images; EXIF rotates the third, and the last has no annotations."""
    names = ("a.png", "b.png", "turned.png", "d.png")
    for name in names:
        photograph(name, 6 if name == "turned.png" else 1)
    images = [
        {"id": name[0], "file_name": name, "width": STORED[0], "height": STORED[1]}
        for name in names
    ]
    listed = [{"id": n} | annotation for n, annotation in enumerate(annotations)]
    return {"images": images, "annotations": listed, "categories": CATEGORIES} | more


BOXES = (
    {"image_id": "a", "category_id": 3, "bbox": [8.25, 4, 20, 10.123]},
    {"image_id": "a", "category_id": 7, "bbox": [1, 2, 3, 4], "score": 0.5},
    {"image_id": "b", "category_id": 3, "segmentation": [SQUARE, [40, 20, 50, 20, 50, 30]]},
    {"image_id": "b", "category_id": 3, "bbox": [8, 4, 2, 10], "segmentation": RUNS},
    {"image_id": "t", "category_id": 7, "bbox": [8, 4, 20, 10], "segmentation": [SQUARE]},
    {"image_id": "t", "category_id": 7, "bbox": [-5, -5, 10, 10]},
)
CAPTIONS = (
    {"image_id": "a", "caption": "a cat"},
    {"image_id": "a", "caption": "two animals"},
    {"image_id": "b", "caption": ""},
    {"image_id": "t", "caption": "a dog lies on its side", "prompt": "describe it"},
)
DOCUMENTS = {
    "boxes and masks": BOXES,
    "captions": CAPTIONS,
    "boxes and captions": (*BOXES, *CAPTIONS),
    "captions of boxes": ({**BOXES[0], "caption": "a grey cat"}, {**BOXES[4], "caption": "a dog"}),
    "an image without a row of boxes": (
        *BOXES[:2],
        {"image_id": "b", "category_id": 3, "bbox": []},
        {"image_id": "b", "caption": "something"},
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("options", ["", "--prompt x"])
def test_import_of_an_export_of_an_import_is_equal(cli, name, options):
    Path("given.json").write_text(json.dumps(document(*DOCUMENTS[name])))
    words = ("--from", "coco", *options.split())
    assert cli("import", "given.json", *words, "-o", "first.jsonl")[0] == 0
    assert cli("export first.jsonl --to coco --images . -o made.json")[0] == 0
    code, _, err = cli("import", "made.json", *words, "-o", "second.jsonl")
    assert code == 0, err
    code, out, err = cli("diff first.jsonl second.jsonl")
    assert (code, out) == (0, ""), err
    first, second = read_rows("first.jsonl"), read_rows("second.jsonl")
    columns = {name for row in (*first, *second) for name in row} - {"index"}
    for before, after in zip(first, second, strict=True):
        assert {name: before.get(name) for name in columns} == {
            name: after.get(name) for name in columns
        }
    with redirect_stdout(StringIO()):
        read = COCO("made.json")
    boxes = [one for row in first for one in row["boxes"]]
    assert len([one for one in read.loadAnns(read.getAnnIds()) if "bbox" in one]) == len(boxes)
    for annotation in read.loadAnns(read.getAnnIds()):
        if "segmentation" in annotation:
            assert read.annToMask(annotation).sum() == annotation["area"]
    sizes = {image["file_name"]: (image["width"], image["height"]) for image in read.imgs.values()}
    assert sizes.get("turned.png", UPRIGHT) == UPRIGHT


def test_one_image_may_not_have_two_entries(cli):
    image = {"file_name": "a.png", "width": 64, "height": 48}
    Image.new("RGB", (64, 48)).save("a.png")
    images = [image | {"id": 1}, image | {"id": 2}]
    given = {"images": images, "annotations": [], "categories": CATEGORIES}
    Path("given.json").write_text(json.dumps(given))
    for words in (
        ("import", "given.json", "--from", "coco", "-o", "rows.jsonl"),
        ("eval", "rows.jsonl", "--truth", "given.json"),
        ("train", "given.json", "--dry-run", "--model", "demo", "-o", "out"),
    ):
        Path("rows.jsonl").write_text('{"id": "a.png", "prompt": "detect cat", "boxes": []}\n')
        code, _, err = cli(*words, *(["--overwrite"] if words[0] == "import" else []))
        assert (code, "image 1 and image 2 have the same name: a.png" in err) == (2, True), err


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.93, 0.5, 1], [0.93, 0.5, 1.0]),
        ([None, 0.5, None], [1.0, 0.5, 1.0]),
        ([None, "9", 1], "annotation 2 of a.png: score is not a number"),
        ([None, 1, float("nan")], "annotation 3 of a.png: score is not a number"),
        ([0.5, 50, 1], "annotation 2 of a.png: score is 50, not a number from 0 to 1"),
        ([1, -0.5, 1], "annotation 2 of a.png: score is -0.5, not a number from 0 to 1"),
    ],
)
def test_scores_are_from_0_to_1(cli, scores, expected):
    box = {"image_id": "a", "category_id": 3, "bbox": [8, 4, 20, 10]}
    Path("given.json").write_text(json.dumps(document(*(box | {"score": one} for one in scores))))
    code, _, err = cli("import given.json --from coco -o rows.jsonl")
    if isinstance(expected, str):
        assert (code, expected in err) == (2, True), err
        return
    boxes = read_rows("rows.jsonl")[0]["boxes"]
    assert [one["confidence"] for one in boxes] == pytest.approx(expected)
    assert [one["score"] for one in boxes] == pytest.approx(expected)


def test_of_captions_alone_no_image_has_a_row_of_boxes(cli):
    Path("given.json").write_text(json.dumps(document(*CAPTIONS)))
    assert cli("import given.json --from coco -o rows.jsonl")[0] == 0
    rows = read_rows("rows.jsonl")
    assert [row["task"] for row in rows] == ["caption", "caption", "caption", "ask"]
    Path("given.json").write_text(json.dumps(document(CAPTIONS[0], CAPTIONS[3])))
    assert cli("import given.json --from coco -o rows.jsonl --overwrite")[0] == 0
    assert [row["index"] for row in read_rows("rows.jsonl")] == [0, 2]  # b.png has no caption


def test_lvis_is_refused(cli):
    given = document({"image_id": "a", "category_id": 3, "bbox": [8, 4, 20, 10]})
    given["images"][0] |= {"neg_category_ids": [9]}
    Path("given.json").write_text(json.dumps(given))
    code, _, err = cli("import given.json --from coco -o rows.jsonl")
    assert (code, "given.json: LVIS marks some labels of each image only" in err) == (2, True)


@pytest.mark.parametrize("degrees", [90, -45.5, 720])
def test_rotated_boxes_without_a_mask_are_skipped(cli, degrees):
    box = {"image_id": "a", "category_id": 3, "bbox": [10, 20, 20, 10]}
    plain = {**box, "image_id": "b", "attributes": {"occluded": False, "rotation": 0.0}}
    box["attributes"] = {"occluded": False, "rotation": degrees}
    masked = {**box, "image_id": "d", "segmentation": [SQUARE]}  # which has the rotation
    Path("given.json").write_text(json.dumps(document(box, plain, masked)))
    code, _, err = cli("import given.json --from coco -o rows.jsonl")
    assert code == 0
    assert "1 box with a rotation skipped (first: annotation 1 of a.png)" in err
    rows = {row["id"]: row["boxes"] for row in read_rows("rows.jsonl")}
    assert "a.png" not in rows
    for id_ in ("b.png", "d.png"):
        assert [rows[id_][0][side] for side in ("xmin", "ymin", "xmax", "ymax")] == [10, 20, 30, 30]
    given = document(box)
    Path("given.json").write_text(json.dumps(given | {"images": given["images"][:1]}))
    code, _, err = cli("import given.json --from coco -o rows.jsonl --overwrite")
    assert (code, "given.json has no annotated image; 1 box with a rotation" in err) == (2, True)


def test_boxes_that_are_fractions_are_an_error(cli):
    boxes = [[0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]]
    annotations = [{"image_id": "a", "category_id": 3, "bbox": box} for box in boxes]
    Path("given.json").write_text(json.dumps(document(*annotations)))
    code, _, err = cli("import given.json --from coco -o rows.jsonl")
    assert code == 2
    assert "given.json: the boxes are fractions of the image, not pixels" in err


def test_captions_beside_an_empty_box_do_not_say_that_there_is_nothing(cli):
    empty = {"image_id": "b", "category_id": 3, "bbox": [], "caption": "a cat"}
    Path("given.json").write_text(json.dumps(document(*BOXES[:2], empty)))
    code, _, err = cli("import given.json --from coco -o rows.jsonl")
    assert code == 0
    assert "1 image without a row of boxes" in err
    rows = [(row["id"], row["prompt"], row["answer"]) for row in read_rows("rows.jsonl")]
    assert [row for row in rows if row[0] == "b.png"] == [("b.png", "caption en", "a cat")]


@pytest.mark.parametrize("key", ["annotations", "images", "info"])
def test_keys_that_occur_twice_are_an_error(cli, key):
    text = json.dumps(document(*BOXES))
    Path("given.json").write_text(f'{{"{key}": [], "{key}": [], {text[1:]}')
    code, _, err = cli("import given.json --from coco -o rows.jsonl")
    assert code == 2
    assert "given.json is not valid JSON: it has a duplicate key" in err


def test_byte_order_marks_stay_in_no_label_id_or_caption(cli):
    mark = "\ufeff"
    box = {"image_id": f"{mark}a", "category_id": 3, "bbox": [8, 4, 20, 10]}
    given = document({**box, "caption": f"{mark}a cat"})
    given["categories"] = [{"id": 3, "name": f"{mark}cat"}]
    Path("given.json").write_text(json.dumps(given))
    assert cli("import given.json --from coco -o rows.jsonl")[0] == 0
    first, second = read_rows("rows.jsonl")[:2]
    assert (first["prompt"], second["answer"]) == ("detect cat", "a cat")


def test_names_have_no_leading_dot_as_in_a_run(cli):
    given = document({"image_id": "a", "category_id": 3, "bbox": [1, 2, 3, 4]})
    given["images"][0]["file_name"] = "././a.png"
    Path("given.json").write_text(json.dumps(given))
    assert cli("import given.json --from coco -o rows.jsonl")[0] == 0
    assert [row["id"] for row in read_rows("rows.jsonl")][:2] == ["a.png", "b.png"]
    given["images"][1]["file_name"] = "./a.png"
    Path("given.json").write_text(json.dumps(given))
    code, _, err = cli("import given.json --from coco -o rows.jsonl --overwrite")
    assert (code, "image 1 and image 2 have the same name: a.png" in err) == (2, True)


@pytest.mark.parametrize("width", [0, None, "", "?", [64], 10**400])
def test_a_size_that_is_no_number_is_that_of_the_image(cli, width):
    given = document({"image_id": "a", "category_id": 3, "bbox": [1, 2, 3, 4]})
    given["images"][0]["width"] = width
    Path("given.json").write_text(json.dumps(given))
    assert cli("import given.json --from coco -o rows.jsonl")[0] == 0
    assert read_rows("rows.jsonl")[0]["width"] == 64


@pytest.mark.parametrize("is_sized", [True, False])
def test_absent_images_are_counted_once(cli, is_sized):
    given = document(*({"image_id": one, "category_id": 3, "bbox": [1, 2, 3, 4]} for one in "ab"))
    given["images"] = [
        {"id": one["id"], "file_name": one["file_name"]} | (one if is_sized else {})
        for one in given["images"][:2]
    ]
    Path("a.png").unlink()
    Path("given.json").write_text(json.dumps(given))
    code, _, err = cli("import given.json --from coco -o rows.jsonl")
    assert code == (0 if is_sized else 3)
    assert ("1 image not found" if is_sized else "1 image skipped") in err
    assert [row["id"] for row in read_rows("rows.jsonl")] == ["a.png", "b.png"][not is_sized :]
    Path("b.png").unlink()
    assert cli("import given.json --from coco -o rows.jsonl --overwrite")[0] == 2
