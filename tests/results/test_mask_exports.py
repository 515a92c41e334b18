"""Tests `pgcli export`: masks read back from each format equal the masks of the rows."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from pycocotools import mask as coco_masks

from pgcli.labels.upright import bounds, fill
from pgcli.records import Rle
from pgcli.results.overlay import MAX_BRIDGE_POINTS, contours, polygon
from pgcli.rle import encode_counts, encode_mask
from tests.support.exporting import SIZES, exported, overlap, plain, saved, segmented, shape

FINE = 8  # subpixels per side of a pixel, drawn by PIL


@st.composite
def grids(draw: st.DrawFn) -> numpy.ndarray:
    """Masks with specks, holes, and pixels that touch at a corner."""
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    bits = draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    return numpy.array(bits).reshape(height, width)


def held(points_n2: numpy.ndarray, height: int, width: int) -> numpy.ndarray:
    """The pixels with centres inside a polygon, by the even-odd rule."""
    found = numpy.zeros((height, width), bool)
    x, y = points_n2.T
    next_x, next_y = numpy.roll(points_n2, -1, axis=0).T
    for row in range(height):
        level = row + 0.5
        passes = (y <= level) != (next_y <= level)
        share = (level - y[passes]) / (next_y - y)[passes]
        at = x[passes] + share * (next_x - x)[passes]
        found[row] = (at[:, None] < numpy.arange(width) + 0.5).sum(axis=0) % 2
    return found


# Contours and polygons


@given(grids())
def test_polygon_contains_exactly_the_pixel_centres_of_its_mask(mask):
    points = polygon(encode_mask(mask))
    assert len(points) != 1
    assert (held(points, *mask.shape) == mask).all()
    if mask.any():
        y, x = numpy.nonzero(mask)
        assert points.min(axis=0).tolist() == [x.min(), y.min()]
        assert points.max(axis=0).tolist() == [x.max() + 1, y.max() + 1]


@given(
    points=st.lists(st.tuples(*[st.integers(-10, 90).map(lambda x: x / 2)] * 2), min_size=3),
    size=st.tuples(st.integers(1, 40), st.integers(1, 30)),
)
def test_polygon_with_an_extent_reaches_as_far_and_has_the_same_pixels(points, size):
    outline_n2 = numpy.array(points)
    mask = fill([outline_n2], size, "it")
    if mask is not None:
        left, top, right, bottom = bounds([outline_n2])
        extent = max(left, 0.0), max(top, 0.0), min(right, size[0]), min(bottom, size[1])
        fitted_n2 = polygon(mask, extent)
        assert bounds([fitted_n2]) == extent
        assert fill([fitted_n2], size, "it") == mask


def test_polygon_has_few_points():
    assert len(polygon(encode_mask(numpy.ones((40, 50), bool)))) == 8
    stairs = numpy.tri(200, dtype=bool)
    assert len(polygon(encode_mask(stairs))) < 10


def test_parts_of_a_polygon_are_joined_at_their_closest_points():
    ragged = numpy.random.default_rng(0).integers(0, 5, (600, 2))
    mask = numpy.zeros((600, 40), bool)
    for row, (left, right) in enumerate(ragged):
        mask[row, left : 15 + left // 2] = mask[row, 20 : 39 - right] = True
    mask[300:303, 12:18] = True
    joined = length(polygon(encode_mask(mask)))
    apart = sum(length(loop) for loop in contours(mask))
    assert max(map(len, contours(mask))) > MAX_BRIDGE_POINTS
    assert 0 < joined - apart < 2 * 10


def length(points_n2: numpy.ndarray) -> float:
    """The length of a closed line."""
    onward = numpy.roll(points_n2, -1, axis=0) - points_n2
    return float(numpy.hypot(*onward.T).sum())


def test_mask_larger_than_any_image_is_ignored():
    everywhere = Rle((1, 1 << 30), "0PPPPPP1")
    assert coco_masks.area({"size": [1, 1 << 30], "counts": everywhere.counts}) == 1 << 30
    for size in ((1, 1 << 30), (1 << 30, 1)):
        mask = Rle(size, everywhere.counts)
        assert len(polygon(mask)) == 0


# Formats


def yolo_polygons(output: Path, name: str, size: tuple[int, int]) -> list[tuple[int, Any]]:
    """The classes and points in pixels of an image's labels."""
    text = (output / "labels" / Path(name).with_suffix(".txt")).read_text()
    lines = [line.split() for line in text.splitlines()]
    return [
        (int(class_index), numpy.array(points, float).reshape(-1, 2) * size)
        for class_index, *points in lines
    ]


def test_yolo_polygons_reproduce_masks_with_parts_and_holes(cli, masks, tmp_path):
    output = tmp_path / "yolo"
    assert exported(cli, masks, "yolo", output)[0] == 0
    for name, size in SIZES.items():
        (class_index, points), *_ = yolo_polygons(output, name, size)
        mask = shape(size[1], size[0])
        assert class_index == 1
        assert (held(points, *mask.shape) == mask).all()
        canvas = Image.new("1", (size[0] * FINE, size[1] * FINE))
        ImageDraw.Draw(canvas).polygon([tuple(point) for point in points * FINE], fill=1)
        filled = numpy.asarray(canvas)[FINE // 2 :: FINE, FINE // 2 :: FINE]
        assert overlap(filled, mask) > 0.95


def test_a_box_without_a_mask_becomes_a_rectangle_and_is_reported(cli, masks, tmp_path):
    code, err = exported(cli, masks, "yolo", tmp_path / "yolo")
    assert code == 0
    assert "1 box written as rectangles, without a mask" in err
    _, (class_index, points) = yolo_polygons(tmp_path / "yolo", "a.png", SIZES["a.png"])
    assert class_index == 0
    assert points == pytest.approx(numpy.array([[8, 4], [28, 4], [28, 14], [8, 14]]), abs=1e-3)


def test_yolo_labels_are_boxes_if_no_row_has_a_mask(cli, folder, masks, tmp_path):
    codes = [json.loads(line) for line in masks.read_text().splitlines()]
    for one in codes:  # as `segment` writes rows without a mask decoder
        one["masks"] = [mask and mask | {"rle": None} for mask in one["masks"]]
    for number, known in enumerate((codes, plain(folder))):
        output = tmp_path / f"yolo-{number}"
        _, err = exported(cli, saved(tmp_path / "r.jsonl", known), "yolo", output)
        assert "rectangles" not in err
        lines = [line for file in output.rglob("*.txt") for line in file.read_text().splitlines()]
        assert lines
        assert all(len(line.split()) == 5 for line in lines)


def test_label_studio_has_polygons_for_masks_and_rectangles_for_boxes(cli, masks, tmp_path):
    assert exported(cli, masks, "labelstudio", tmp_path / "tasks.json")[0] == 0
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    for task, (width, height) in zip(tasks, SIZES.values(), strict=True):
        result = task["predictions"][0]["result"][0]
        assert (result["type"], result["from_name"]) == ("polygonlabels", "mask")
        assert (result["original_width"], result["original_height"]) == (width, height)
        assert result["value"]["polygonlabels"] == ["dog"]
        points = numpy.array(result["value"]["points"]) / 100 * (width, height)
        assert (held(points, height, width) == shape(height, width)).all()
    other = tasks[0]["predictions"][0]["result"][1]
    assert (other["type"], other["from_name"]) == ("rectanglelabels", "label")


@pytest.mark.parametrize("to", ["coco", "yolo", "labelstudio", "fiftyone"])
def test_mask_of_a_huge_image_allocates_no_pixels(cli, folder, tmp_path, to):
    (row,) = segmented(folder)[:1]
    # the image is not there: with another size it would be skipped
    options = ("--store-images", "none") if to in ("yolo", "fiftyone") else ()
    side = 1 << 15
    far = Rle((side, side), encode_counts([0, 1, side**2 - 1], size=(side, side)).counts)
    wide = Rle((1, side * side), "0PPPPPP1")
    for mask in (far, wide):
        height, width = mask.size
        rle = {"size": [height, width], "counts": mask.counts}
        one = {"codes": [0] * 16, "rle": rle}
        changed = row | {
            "width": width,
            "height": height,
            "masks": [one, None],
            "image": "gone.png",
        }
        file = saved(tmp_path / "r.jsonl", [changed])
        assert exported(cli, file, to, tmp_path / "out", "--overwrite", *options)[0] == 0
