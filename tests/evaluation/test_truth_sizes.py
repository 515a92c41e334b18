"""Sizes in the truth are compared with the rows; boxes of stored pixels are turned."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pgcli.rle import encode_mask_parts
from tests.support.awkward import FLIPPED, LEFT, STORED, TOP, TURNED, UPRIGHT, photograph
from tests.support.evaluating import evaluate, refused, write
from tests.support.exporting import row

pytestmark = pytest.mark.usefixtures("workdir")

SIDES = [LEFT, TOP, 20, 10]
BOX = {"label": "cat", "xmin": LEFT, "ymin": TOP, "xmax": 28, "ymax": 14}


def answered(*images: tuple[str, list[float], Any]) -> str:
    """Result rows with a box in each upright image, whose names and sizes are given."""
    return write(
        "rows.jsonl",
        [
            row(n, id=name, image=name, task="detect", prompt="detect cat", answer="")
            | {"width": size[0], "height": size[1]}
            | {"boxes": [plain(corners)]}
            for n, (name, corners, size) in enumerate(images)
        ],
    )


def plain(corners: list[float]) -> dict[str, Any]:
    """A box of a row."""
    left, top, right, bottom = corners
    known = {"label": "cat", "score": 1.0, "confidence": 0.9}
    return known | {"xmin": left, "ymin": top, "xmax": right, "ymax": bottom}


def coco(*images: tuple[str, Any], sides: Any = SIDES, **more: Any) -> str:
    """COCO with the same box in images of the sizes that it states."""
    listed = [
        {"id": n, "file_name": name} | ({"width": size[0], "height": size[1]} if size else {})
        for n, (name, size) in enumerate(images, 1)
    ]
    annotations = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": sides} for n in range(1, len(images) + 1)
    ]
    document = {"images": listed, "annotations": annotations}
    Path("coco.json").write_text(
        json.dumps(document | {"categories": [{"id": 1, "name": "cat"}]} | more)
    )
    return "coco.json"


def ap(cli: Any, truth: str) -> float:
    found = evaluate(cli, "rows.jsonl", "--truth", truth, "--metric", "ap")
    value: float = found["metrics"]["ap"]["value"]
    return value


@pytest.mark.parametrize("orientation", TURNED)
def test_truth_of_the_stored_size_is_turned(cli, orientation):
    photograph("a.png", orientation)
    answered(("a.png", TURNED[orientation], UPRIGHT))
    code, _, err = cli("eval", "rows.jsonl", "--truth", coco(("a.png", STORED)))
    assert (code, "coco.json: 1 image annotated as stored: boxes are rotated upright" in err) == (
        0,
        True,
    )
    assert ap(cli, "coco.json") == pytest.approx(1.0)
    sized = {"width": STORED[0], "height": STORED[1]}
    for size in (sized, {}):  # a mask states a size as well
        mask = encode_mask_parts([(np.ones((10, 20), bool), LEFT, TOP)], size=(48, 64))
        masks = [{"size": [48, 64], "counts": mask.counts}]
        write("truth.jsonl", [{"id": "a.png", "boxes": [BOX], "masks": masks} | size])
        assert ap(cli, "truth.jsonl") == pytest.approx(1.0)
    lines = ["id,label,width,height,xmin,ymin,xmax,ymax", "a.png,cat,64,48,8,4,28,14"]
    Path("truth.csv").write_text("\n".join(lines) + "\n")
    assert ap(cli, "truth.csv") == pytest.approx(1.0)


def test_truth_of_the_upright_size_is_not_turned(cli):
    photograph("a.png", 6)
    answered(("a.png", [8, 4, 28, 14], UPRIGHT))
    assert ap(cli, coco(("a.png", UPRIGHT))) == pytest.approx(1.0)
    assert ap(cli, coco(("a.png", None))) == pytest.approx(1.0)
    sized = [{"id": "a.png", "width": UPRIGHT[0], "height": UPRIGHT[1], "boxes": [BOX]}]
    assert ap(cli, write("truth.jsonl", sized)) == pytest.approx(1.0)
    Path("a.png").unlink()  # which nothing needs
    assert ap(cli, "coco.json") == pytest.approx(1.0)
    assert ap(cli, "rows.jsonl") == pytest.approx(1.0)


@pytest.mark.parametrize("orientation", FLIPPED)
def test_truths_of_flipped_images_are_upright(cli, orientation):
    photograph("flipped.png", orientation)
    photograph("a.png", 6)
    photograph("b.png", 6)
    upright = [8, 4, 28, 14]
    answered(
        ("a.png", TURNED[6], UPRIGHT), ("b.png", upright, UPRIGHT), ("flipped.png", upright, STORED)
    )
    truth = coco(("a.png", STORED), ("b.png", None), ("flipped.png", STORED))
    assert ap(cli, truth) == pytest.approx(1.0)


def test_truth_of_another_size_fails_with_its_name(cli):
    Image.new("RGB", (320, 240)).save("a.png")
    answered(("a.png", [8, 4, 28, 14], (320, 240)))
    for stated in ((640, 480), (320, 241), (240, 320)):
        sizes = f"a.png: {stated[0]} x {stated[1]} is stated, and the image has 320 x 240"
        assert sizes in refused(cli, "rows.jsonl", "--truth", coco(("a.png", stated)))
        known = {"id": "a.png", "width": stated[0], "height": stated[1], "boxes": [BOX]}
        truth = write("truth.jsonl", [known])
        assert sizes in refused(cli, "rows.jsonl", "--truth", truth)
    Path("a.png").unlink()
    message = refused(cli, "rows.jsonl", "--truth", truth)
    assert "a.png: the truth says 240 x 320, the row 320 x 240, and the image cannot be" in message
    write("truth.jsonl", [known | {"width": 320, "height": 240}, known])
    message = refused(cli, "rows.jsonl", "--truth", truth)
    assert "rows of 'a.png' state 320 x 240 and 240 x 320" in message


def test_moved_photograph_is_found_in_the_folder_of_images(cli):
    Path("elsewhere/gone").mkdir(parents=True)
    photograph("elsewhere/gone/a.png", 6)
    answered(("gone/a.png", TURNED[6], UPRIGHT))
    words = ("rows.jsonl", "--truth", coco(("gone/a.png", STORED)))
    assert "the image cannot be read" in refused(cli, *words)
    found = evaluate(cli, *words, "--images", "elsewhere", "--metric", "ap")
    assert found["metrics"]["ap"]["value"] == pytest.approx(1.0)


def test_sizes_of_texts_are_not_compared(cli):
    write("rows.jsonl", [row(0, id="a.png", task="ask", answer="red", width=64, height=48)])
    known = [{"id": "a.png", "answer": "red", "width": 640, "height": 480}]
    found = evaluate(cli, "rows.jsonl", "--truth", write("truth.jsonl", known), "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 1.0


def test_skipped_entries_of_a_truth_are_reported(cli):
    answered(("a.png", [8, 4, 28, 14], STORED), ("b.png", [8, 4, 28, 14], STORED))
    document = json.loads(Path(coco(("a.png", STORED), ("b.png", STORED))).read_text())
    document["annotations"][1]["bbox"] = []
    document["annotations"][0]["area"] = "?"
    Path("coco.json").write_text(json.dumps(document))
    code, _, err = cli("eval rows.jsonl --truth coco.json")
    assert code == 0
    assert "coco.json: 1 area without a number skipped (first: annotation 1 of a.png)" in err
    assert "1 annotation without a box or a mask skipped (first: annotation 2 of b.png)" in err
    assert "1 image without a row of boxes" in err
    found = evaluate(cli, "rows.jsonl", "--truth", "coco.json")
    assert (found["surplus"], found["metrics"]["recall@0.5"]["value"]) == (1, 1.0)
