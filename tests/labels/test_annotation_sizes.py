"""The sizes of annotations are compared with the images; boxes of stored pixels are turned."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from pycocotools import mask as coco_masks

from pgcli.images.files import Size
from pgcli.images.formats import ImageHeader
from pgcli.labels.upright import turned_corners, turned_mask
from pgcli.rle import decode_mask, encode_mask
from tests.support.awkward import (
    BOTTOM,
    FLIPPED,
    LEFT,
    RIGHT,
    STORED,
    TOP,
    TURNED,
    UPRIGHT,
    photograph,
)
from tests.support.exporting import box, corners, read_rows, row, saved
from tests.support.runs import Command

pytestmark = pytest.mark.usefixtures("workdir")


def late_exif(name: str) -> None:
    """Move the orientation of a PNG from its header to the end."""
    data = Path(name).read_bytes()
    start = data.index(b"eXIf") - 4
    chunk = data[start : start + int.from_bytes(data[start : start + 4], "big") + 12]
    data = data.replace(chunk, b"")
    end = data.index(b"IEND") - 4
    Path(name).write_bytes(data[:end] + chunk + data[end:])


def document(*images: tuple[str, Any], boxes: Any = None, **more: Any) -> None:
    """COCO in coco.json: images with the sizes that it states, and the same box for each."""
    sides = [LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP]
    listed, annotations = [], []
    for number, (name, size) in enumerate(images, start=1):
        stated = {} if size is None else {"width": size[0], "height": size[1]}
        listed.append({"id": number, "file_name": name} | stated)
        for own in boxes or [{"bbox": sides}]:
            known = {"id": len(annotations), "image_id": number, "category_id": 1}
            annotations.append(known | own)
    categories = [{"id": 1, "name": "cat"}]
    whole = {"images": listed, "annotations": annotations, "categories": categories}
    Path("coco.json").write_text(json.dumps(whole | more))


def imported(cli: Command, format: str = "coco", file: str = "coco.json") -> tuple[int, str]:
    code, _, err = cli("import", file, "--from", format, "-o", "truth.jsonl", "--overwrite")
    return code, err


def first_box(number: int = 0) -> list[float]:
    return corners(read_rows("truth.jsonl")[number]["boxes"][0])


@pytest.mark.parametrize("side", [str, "{}.0".format, lambda side: side + 0.2])
def test_sizes_are_numbers_in_texts_too_and_rounded(cli, side):
    photograph("a.png", 6)
    document(("a.png", [side(each) for each in STORED]))
    code, err = imported(cli)
    assert (code, first_box()) == (0, TURNED[6])
    assert "1 image annotated as stored" in err


@pytest.mark.parametrize("orientation", TURNED)
def test_boxes_and_masks_are_turned_as_pixels_are(orientation):
    photograph("a.png", orientation)
    with Image.open("a.png") as image:
        stored = np.asarray(image) > 0
    with Image.open("a.png") as image:
        upright = np.asarray(ImageOps.exif_transpose(image)) > 0
    header = ImageHeader("PNG", Size(*upright.shape[::-1]), orientation)
    assert np.array_equal(decode_mask(turned_mask(encode_mask(stored), header)), upright)
    y, x = np.nonzero(upright)
    expected = (x.min(), y.min(), x.max() + 1, y.max() + 1)
    assert turned_corners((LEFT, TOP, RIGHT, BOTTOM), header) == expected


@pytest.mark.parametrize(
    ("orientation", "format_"),
    [
        *((each, "JPEG") for each in TURNED),
        *((6, name) for name in ("PNG", "WEBP", "TIFF", "late")),
    ],
)
def test_boxes_of_the_stored_size_are_turned(cli, orientation, format_):
    photograph("a.png", orientation, "PNG" if format_ == "late" else format_)
    if format_ == "late":
        late_exif("a.png")
    document(("a.png", STORED))
    code, err = imported(cli)
    assert (code, "1 image annotated as stored: boxes are rotated upright" in err) == (0, True), err
    (made,) = read_rows("truth.jsonl")
    assert (made["width"], made["height"]) == UPRIGHT
    assert first_box() == TURNED[orientation]
    document(("a.png", UPRIGHT))
    code, err = imported(cli)
    assert (code, first_box(), "turned" in err) == (0, [LEFT, TOP, RIGHT, BOTTOM], False)


def test_masks_of_the_stored_size_are_turned(cli):
    photograph("a.png", 6)
    pixels = np.zeros(STORED[::-1], np.uint8, order="F")
    pixels[TOP:BOTTOM, LEFT:RIGHT] = 1
    compressed = coco_masks.encode(pixels)
    flat = pixels.ravel(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(changes, prepend=0, append=len(flat)).tolist()
    square = [LEFT, TOP, RIGHT, TOP, RIGHT, BOTTOM, LEFT, BOTTOM]
    size = [STORED[1], STORED[0]]
    shapes = [[square], {"size": size, "counts": compressed["counts"].decode()}]
    shapes.append({"size": size, "counts": counts})
    document(("a.png", STORED), boxes=[{"segmentation": one} for one in shapes])
    assert imported(cli)[0] == 0
    (made,) = read_rows("truth.jsonl")
    for one, mask in zip(made["boxes"], made["masks"], strict=True):
        assert corners(one) == TURNED[6]
        assert np.array_equal(coco_masks.decode(mask["rle"]), np.rot90(pixels, -1))
    # run lengths state the size as well, where the image does not
    document(("a.png", None), boxes=[{"segmentation": one} for one in shapes[1:]])
    assert imported(cli)[0] == 0
    assert first_box() == TURNED[6]


@pytest.mark.parametrize(
    ("orientation", "size"), [*((each, STORED) for each in FLIPPED), (6, (48, 48))]
)
def test_boxes_are_upright_if_exif_keeps_the_size(cli, orientation, size):
    photograph("same.png", orientation, size=size)
    photograph("a.png", 6)
    document(("same.png", size), ("a.png", STORED))
    code, _ = imported(cli)
    assert (code, first_box(0), first_box(1)) == (0, [LEFT, TOP, RIGHT, BOTTOM], TURNED[6])


@pytest.mark.parametrize(
    ("stated", "image"),
    [((640, 480), (320, 240)), ((320, 241), (320, 240)), ((240, 320), (320, 240))],
    ids=["scaled", "off by one", "swapped without EXIF"],
)
def test_another_size_is_an_error_with_the_name(cli, stated, image):
    Image.new("RGB", image).save("a.png")
    sizes = f"a.png: {stated[0]} x {stated[1]} is stated, and the image has 320 x 240"
    document(("a.png", stated))
    code, err = imported(cli)
    assert (code, sizes in err, Path("truth.jsonl").exists()) == (2, True, False)
    shared = {"original_width": stated[0], "original_height": stated[1], "image_rotation": 0}
    value = {"x": 1, "y": 1, "width": 9, "height": 9, "rotation": 0, "rectanglelabels": ["cat"]}
    result = shared | {"type": "rectanglelabels", "value": value}
    tasks = [{"data": {"image": "a.png"}, "annotations": [{"result": [result]}]}]
    Path("tasks.json").write_text(json.dumps(tasks))
    code, err = imported(cli, "labelstudio", "tasks.json")
    assert (code, sizes in err) == (2, True)


def test_size_that_is_not_stated_is_that_of_the_image(cli):
    photograph("a.png", 6)
    Image.new("RGB", STORED).save("b.png")
    document(("a.png", (0, 0)), ("b.png", None), ("gone.png", None))
    code, err = imported(cli)
    assert code == 3
    assert "gone.png: There is no such file" in err or "gone.png" in err
    sizes = [(one["width"], one["height"]) for one in read_rows("truth.jsonl")]
    assert sizes == [UPRIGHT, STORED]
    document(("gone.png", STORED), ("b.png", STORED))  # an absent one is not compared
    assert imported(cli)[0] == 0


@pytest.mark.parametrize("to", ["coco", "yolo"])
def test_rows_of_the_stored_size_are_not_exported(cli, to):
    photograph("a.png", 6)
    sides = box("cat", float(LEFT), float(TOP), float(RIGHT), float(BOTTOM))
    size = {"width": STORED[0], "height": STORED[1]}
    known = {"id": "a.png", "image": "a.png", "task": "detect", "prompt": "detect cat"}
    saved(Path("rows.jsonl"), [row(0, boxes=(sides,), answer="", **known, **size)])
    code, _, err = cli("export", "rows.jsonl", "--to", to, "-o", "out")
    assert (code, "exported 0 images" in err) == (3, True)
    assert "it has 48 x 64 pixels, not 64 x 48" in err
