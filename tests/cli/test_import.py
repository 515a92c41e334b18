"""import: annotations of other tools become rows of truth."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pycocotools import mask as coco_masks

from pgcli.cli.main import main
from tests.support.exporting import corners, make_images, read_rows, saved, segmented
from tests.support.runs import Command

PATHS = {"coco": "made.json", "labelstudio": "made.json", "yolo": "made"}


@pytest.fixture(autouse=True)
def photos() -> None:
    make_images(Path("photos"))


def imported(cli: Command, format: str, *words: str) -> tuple[int, str]:
    code, _, err = cli("import", PATHS[format], "--from", format, "-o", "truth.jsonl", *words)
    return code, err


def export(rows: list[dict[str, Any]], format: str) -> None:
    saved(Path("rows.jsonl"), rows)
    options = {"coco": ["--images", "photos"], "yolo": [], "labelstudio": ["--images", "photos"]}
    if format == "labelstudio":
        options[format] += ["--image-prefix", "/data/local-files/?d="]
    words = ["rows.jsonl", "--to", format, "-o", PATHS[format], *options[format], "--overwrite"]
    assert main(["export", *words]) == 0


def write(document: Any, name: str = "made.json") -> None:
    Path(name).write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize("format", PATHS)
def test_masks_of_an_export_are_read_back(cli, format):
    given = segmented(Path("photos"))
    export(given, format)
    code, err = imported(cli, format, *(["--images", "photos"] if format != "yolo" else []))
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


@pytest.mark.parametrize("format", PATHS)
def test_byte_order_marks_change_nothing(cli, format):
    export(segmented(Path("photos")), format)
    words = ["--overwrite", *(["--images", "photos"] if format != "yolo" else [])]
    assert imported(cli, format, *words)[0] == 0
    before = read_rows("truth.jsonl")
    made = Path(PATHS[format])
    files = [made] if made.is_file() else [*made.rglob("*.txt"), *made.rglob("*.yaml")]
    for file in files:
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert imported(cli, format, *words)[0] == 0
    assert read_rows("truth.jsonl") == before


def coco(*annotations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    image = {"id": 1, "file_name": "photos/a.png", "width": 64, "height": 48}
    own = [{"id": n, "image_id": 1, "category_id": 3} | one for n, one in enumerate(annotations)]
    categories = [{"id": 3, "name": "cat"}]
    return {"images": [image], "annotations": own, "categories": categories} | changes


def test_segmentations_of_coco_are_masks_as_pycocotools_reads_them(cli):
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
    assert "4 boxes; 3 of them with masks; 1 box with a negative side skipped (first: annotation 7"
    assert "1 box with no area in the image skipped (first: 'cat' in photos/a.png)" in err
    assert "1 crowd skipped (first: 'cat' in photos/a.png)" in err
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


@pytest.mark.parametrize(
    "skipped",
    [{"bbox": [0, 0, 9, 9], "iscrowd": 1}, {"bbox": [70, 0, 5, 5]}],
    ids=["crowd", "box"],
)
def test_image_with_skipped_boxes_only_has_no_row(cli, skipped):
    images = [IMAGE, IMAGE | {"id": 2, "file_name": "photos/b.jpg"} | {"width": 40, "height": 40}]
    images.append(IMAGE | {"id": 3, "file_name": "photos/sub/c.png", "width": 30, "height": 60})
    kept = {"image_id": 2, "bbox": [0, 0, 5, 5], "category_id": 2}
    categories = [{"id": 3, "name": "cat"}, {"id": 2, "name": "dog"}]
    write(coco(skipped, kept, skipped | {"image_id": 2}, images=images, categories=categories))
    code, err = imported(cli, "coco")
    assert code == 0
    assert "1 image without a row of boxes: no region was read as one" in err
    rows = read_rows("truth.jsonl")
    assert [(row["id"], len(row["boxes"])) for row in rows] == [
        ("photos/b.jpg", 1),
        ("photos/sub/c.png", 0),
    ]
    imported(cli, "coco", "--each", "--overwrite")
    rows = read_rows("truth.jsonl")
    assert [(row["id"], row["prompt"], len(row["boxes"])) for row in rows] == [
        ("photos/a.png", "detect dog", 0),
        ("photos/b.jpg", "detect dog", 1),
        ("photos/sub/c.png", "detect cat", 0),
        ("photos/sub/c.png", "detect dog", 0),
    ]


def yolo() -> None:
    for folder in ("made/images/train", "made/labels/train"):
        Path(folder).mkdir(parents=True)
    Image.new("RGB", (64, 48)).save("made/images/train/a.png")
    Path("made/labels/train/a.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    Path("made/data.yaml").write_text("names: [cat, dog]\n")


IMAGE = {"id": 1, "file_name": "photos/a.png", "width": 64, "height": 48}


def test_paths_outside_the_folder_are_skipped(cli, tmp_path):
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
    assert "4 images skipped" in err
    assert "hint: --images" in err
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


def test_large_files_and_masks_of_too_many_points_are_errors(cli, monkeypatch):
    write(coco())
    monkeypatch.setattr("pgcli.labels.json_values.MAX_BYTES", 10)
    code, err = imported(cli, "coco")
    assert (code, "is larger than" in err) == (2, True)
    monkeypatch.setattr("pgcli.labels.upright.MAX_CROSSINGS", 10)
    monkeypatch.setattr("pgcli.labels.json_values.MAX_BYTES", 2**20)
    write(coco({"segmentation": [[0, 0, 60, 0, 60, 40]]}))
    code, err = imported(cli, "coco")
    assert (code, "1 mask that cannot be read skipped" in err) == (2, True)
