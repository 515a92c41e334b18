"""import: annotations of other tools become rows of truth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks

from pgcli.cli.main import main
from pgcli.results.imports.shapes import fill
from pgcli.rle import decode
from tests.support.command import Command
from tests.support.exporting import make_images, read_rows, saved, segmented

PATHS = {
    "coco": "made.json",
    "labelstudio": "made.json",
    "yolo": "made",
}


@pytest.fixture(autouse=True)
def photos() -> None:
    make_images(Path("photos"))


def imported(cli: Command, format: str, *words: str) -> tuple[int, str]:
    code, _, err = cli("import", PATHS[format], "--from", format, "-o", "truth.jsonl", *words)
    return code, err


def export(rows: list[dict[str, Any]], format: str) -> None:
    saved(Path("rows.jsonl"), rows)
    options = {"coco": ["--root", "photos"], "yolo": [], "labelstudio": ["--root", "photos"]}
    if format == "labelstudio":
        options[format] += ["--image-prefix", "/data/local-files/?d="]
    words = ["rows.jsonl", "--to", format, "-o", PATHS[format], *options[format], "--overwrite"]
    assert main(["export", *words]) == 0


def write(document: Any, name: str = "made.json") -> None:
    Path(name).write_text(json.dumps(document), encoding="utf-8")


def corners(one: dict[str, Any]) -> list[float]:
    return [one[name] for name in ("xmin", "ymin", "xmax", "ymax")]


@pytest.mark.parametrize("format", PATHS)
def test_masks_of_an_export_are_read_back(cli: Command, format: str) -> None:
    given = segmented(Path("photos"))
    export(given, format)
    code, err = imported(cli, format, *(["--root", "photos"] if format != "yolo" else []))
    assert (code, "3 of them with masks" in err) == (0, True), err
    for row, before in zip(read_rows("truth.jsonl"), given, strict=True):
        for number, mask in enumerate(before["masks"]):
            now = row["masks"][number]
            if mask is None:
                assert now is None
                continue
            assert now["rle"] == mask["rle"]
            assert corners(row["boxes"][number]) == pytest.approx(
                corners(before["boxes"][number]), abs=1e-3
            )


def coco(*annotations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    image = {"id": 1, "file_name": "photos/a.png", "width": 64, "height": 48}
    own = [{"id": n, "image_id": 1, "category_id": 3} | one for n, one in enumerate(annotations)]
    categories = [{"id": 3, "name": "cat"}]
    return {"images": [image], "annotations": own, "categories": categories} | changes


def test_segmentations_of_coco_are_masks_as_pycocotools_reads_them(cli: Command) -> None:
    square = [8, 4, 28, 4, 28, 14, 8, 14]
    runs = [48 * 8 + 4, 10, 38, 10, 48 * 64 - 48 * 8 - 62]
    other = [20, 10, 40, 10, 40, 30, 20, 30]
    write(
        coco(
            {"bbox": [8, 4, 20, 10], "segmentation": [square]},
            {"segmentation": [square, other]},
            {"segmentation": {"size": [48, 64], "counts": runs}},
            {"bbox": [0, 0, 9, 9], "iscrowd": 1},
            {"bbox": [-5, -5, 10, 10]},
            {"bbox": [70, 0, 5, 5]},
            {"bbox": [5, 5, -1, 5]},
        )
    )
    code, err = imported(cli, "coco")
    assert code == 0
    assert "4 boxes; 3 of them with masks; 2 boxes without an area" in err
    assert "1 crowd left out" in err
    (row,) = read_rows("truth.jsonl")
    boxes = [[8, 4, 28, 14], [8, 4, 40, 30], [8, 4, 10, 14], [0, 0, 5, 5]]
    assert [corners(one) for one in row["boxes"]] == boxes
    expected = [
        coco_masks.merge(coco_masks.frPyObjects([square], 48, 64)),
        coco_masks.merge(coco_masks.frPyObjects([square, other], 48, 64)),
        coco_masks.frPyObjects({"size": [48, 64], "counts": runs}, 48, 64),
    ]
    for mask, one in zip(row["masks"], expected, strict=False):
        assert mask["rle"]["counts"] == one["counts"].decode()


def test_polygon_has_the_pixels_whose_centres_it_contains() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        polygon_n2 = rng.uniform(-5, 35, (int(rng.integers(3, 12)), 2))
        mask = fill([polygon_n2], (30, 20), "it")
        x, y = polygon_n2.T
        next_x, next_y = np.roll(polygon_n2, -1, axis=0).T
        expected = np.zeros((20, 30), bool)
        for column in range(30):
            passes = (x <= column + 0.5) != (next_x <= column + 0.5)
            share = (column + 0.5 - x[passes]) / (next_x - x)[passes]
            at = y[passes] + share * (next_y - y)[passes]
            expected[:, column] = (at[:, None] < np.arange(20) + 0.5).sum(axis=0) % 2
        assert np.array_equal(np.zeros((20, 30), bool) if mask is None else decode(mask), expected)
    assert fill([np.array([[0.1, 0.1], [0.2, 0.1], [0.2, 0.2]])], (30, 20), "it") is None


def task(*results: dict[str, Any], image: str = "photos/a.png", **changes: Any) -> dict[str, Any]:
    return {"data": {"image": image}, "annotations": [{"result": list(results)}]} | changes


def region(kind: str, names: list[str] | None = None, **value: Any) -> dict[str, Any]:
    known = {"original_width": 64, "original_height": 48, "image_rotation": 0}
    return {"type": kind, **known, "value": value | {kind: ["cat"] if names is None else names}}


def yolo(lines: str = "0 0.5 0.5 0.5 0.5\n", names: str = "names: [cat, dog]\n") -> None:
    for folder in ("made/images/train", "made/labels/train"):
        Path(folder).mkdir(parents=True)
    Image.new("RGB", (64, 48)).save("made/images/train/a.png")
    Path("made/labels/train/a.txt").write_text(lines)
    if names:
        Path("made/data.yaml").write_text(names)


COCO_WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no images": (lambda: coco(images=None), "images is not an array"),
    "a name": (lambda: coco(images=[{"id": 1}]), "file_name is not text"),
    "a size": (lambda: coco(images=[SIZELESS]), "image 1: width is not a whole number"),
    "a field": (
        lambda: coco(images=[SIZELESS | {"width": 10**9, "height": 10**9}]),
        "not the size",
    ),
    "three": (lambda: coco({"bbox": [1, 2, 3]}), "annotation 1: bbox does not have four"),
    "text": (lambda: coco({"bbox": [1, 2, 3, "4"]}), "bbox is not a number"),
    "huge": (lambda: coco({"bbox": [1, 2, 3, 1e300]}), "bbox is not a number"),
    "vast": (lambda: coco({"bbox": [1, 2, 3, 10**400]}), "bbox is not a number"),
    "no box": (lambda: coco({}), "neither bbox nor segmentation nor caption"),
    "category": (lambda: coco({"category_id": 9, "bbox": [1, 2, 3, 4]}), "no category has"),
    "image": (lambda: coco({"image_id": 9, "bbox": [1, 2, 3, 4]}), "image that is not there"),
    "label": (lambda: coco(categories=[{"id": 3, "name": "a ; b"}]), "category 1: name is empty"),
    "odd": (lambda: coco({"segmentation": [[1, 2, 3, 4, 5, 6, 7]]}), "not a polygon of three"),
    "flat": (lambda: coco({"segmentation": [1, 2, 3, 4, 5, 6]}), "segmentation is not an array"),
    "size": (lambda: coco({"segmentation": {"size": [9, 9], "counts": [81]}}), "not that of its"),
    "counts": (lambda: coco({"segmentation": {"size": [48, 64], "counts": [1]}}), "do not add up"),
    "minus": (lambda: coco({"segmentation": {"size": [48, 64], "counts": [-1]}}), "not a whole"),
    "rle": (lambda: coco({"segmentation": {"size": [48, 64], "counts": "zz"}}), "of a mask"),
    "twice": (lambda: coco(images=[IMAGE, IMAGE | {"id": 2}]), "is there twice"),
}
IMAGE = {"id": 1, "file_name": "photos/a.png", "width": 64, "height": 48}
SIZELESS = {"id": 1, "file_name": "photos/a.png"}


@pytest.mark.parametrize("fault", COCO_WRONG)
def test_invalid_coco_is_refused_and_nothing_is_written(cli: Command, fault: str) -> None:
    make, message = COCO_WRONG[fault]
    write(make())
    code, err = imported(cli, "coco")
    assert (code, message in err, "hint: " in err) == (2, True, True), err
    assert not Path("truth.jsonl").exists()


LS_WRONG: dict[str, tuple[Any, str]] = {
    "an object": ({}, "the file is not an array"),
    "a task": ([7], "task 1 is not an object"),
    "no image": (
        [{"data": {"text": "x"}, "annotations": [{"result": []}]}],
        "no image in its data",
    ),
    "results": ([{"data": {}, "annotations": [{"result": 7}]}], "result is not an array"),
    "a number": ([task(region("rectanglelabels", x="1", y=0, width=1, height=1))], "x is not a n"),
    "labels": (
        [task(region("rectanglelabels", ["a;b"], x=1, y=0, width=1, height=1))],
        "semicolon",
    ),
    "points": ([task(region("polygonlabels", points=[[1, 2], [3, 4]]))], "three points"),
}


@pytest.mark.parametrize("fault", LS_WRONG)
def test_invalid_label_studio_is_refused(cli: Command, fault: str) -> None:
    document, message = LS_WRONG[fault]
    write(document)
    code, err = imported(cli, "labelstudio")
    assert (code, message in err, "hint: " in err) == (2, True, True), err
    assert not Path("truth.jsonl").exists()


@pytest.mark.parametrize(
    ("lines", "names", "message"),
    [
        ("0 nan 0.5 0.5 0.5\n", "names: [cat]", "line 1 has a number that is not a fraction"),
        ("0 0.5 0.5 0.5\n", "names: [cat]", "line 1 has neither a box nor a polygon"),
        ("0 0 0 0 0\n1 0 0 1 1\n", "names: [cat]", "line 2 has a class without a name"),
        ("-1 0 0 1 1\n", "names: [cat]", "line 1 has a class without a name"),
        ("0 a b c d\n", "names: [cat]", "line 1 does not have numbers"),
        ("", "names: {1: cat}", "neither a list nor a mapping"),
        ("", "names: [!!python/object/apply:os.abort []]", "does not name the classes"),
        ("", "a: &a [x]\nnames: {<<: *a}", "does not name the classes"),
        ("", "names: [", "does not name the classes"),
        ("", "names: ['a;b']", "semicolon"),
    ],
)
def test_invalid_yolo_is_refused(cli: Command, lines: str, names: str, message: str) -> None:
    yolo(lines, names)
    code, err = imported(cli, "yolo")
    assert (code, message in err, "hint: " in err) == (2, True, True), err
    assert not Path("truth.jsonl").exists()


def test_paths_that_lead_out_are_left_out(cli: Command, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.png"
    Image.new("RGB", (64, 48)).save(outside)
    names = [
        f"../{outside.name}",
        str(outside),
        "photos/a.png",
        "link.png",
        "x\0y",
        "gone.png",
        "x" * 999,
    ]
    Path("link.png").symlink_to(outside)
    images = [IMAGE | {"id": n, "file_name": name} for n, name in enumerate(names)]
    write(coco(images=images))
    code, err = imported(cli, "coco")
    assert (code, [row["id"] for row in read_rows("truth.jsonl")]) == (
        3,
        ["photos/a.png", "gone.png", "x" * 999],
    )
    assert "4 images left out" in err
    assert "hint: --root" in err
    write(coco(images=images[:1]))
    code, err = imported(cli, "coco", "--overwrite")
    assert (code, "has no annotated image" in err) == (2, True)
    yolo()
    Path("made/images/train/b.png").symlink_to(outside)
    Path("made/images/train/c.png").symlink_to("/etc/passwd")
    Path("made/labels/train/d.txt").symlink_to("/etc/passwd")
    code, err = imported(cli, "yolo", "--overwrite")
    assert (code, [row["id"] for row in read_rows("truth.jsonl")]) == (3, ["train/a.png"])
    assert "root:" not in err


def test_large_files_and_masks_of_too_many_points_are_refused(
    cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(coco())
    monkeypatch.setattr("pgcli.results.imports.coco.MAX_BYTES", 10)
    code, err = imported(cli, "coco")
    assert (code, "is larger than" in err) == (2, True)
    monkeypatch.setattr("pgcli.results.imports.shapes.MAX_CROSSINGS", 10)
    monkeypatch.setattr("pgcli.results.imports.coco.MAX_BYTES", 2**20)
    write(coco({"segmentation": [[0, 0, 60, 0, 60, 40]]}))
    code, err = imported(cli, "coco")
    assert (code, "has too many points" in err) == (2, True)
