"""Sizes in the truth are compared with the rows; another size is refused."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from pgcli.rle import encode_mask
from tests.support.awkward import LEFT, STORED, TOP, TURNED, UPRIGHT, photograph
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


def test_truth_of_the_same_size_or_without_one_is_upright(cli):
    answered(("a.png", [8, 4, 28, 14], UPRIGHT))
    assert ap(cli, coco(("a.png", UPRIGHT))) == pytest.approx(1.0)
    assert ap(cli, coco(("a.png", None))) == pytest.approx(1.0)
    sized = [{"id": "a.png", "width": UPRIGHT[0], "height": UPRIGHT[1], "boxes": [BOX]}]
    assert ap(cli, write("truth.jsonl", sized)) == pytest.approx(1.0)
    assert ap(cli, "rows.jsonl") == pytest.approx(1.0)


@pytest.mark.parametrize("stated", [(640, 480), (320, 241), (240, 320)])
def test_truth_of_another_size_is_refused(cli, stated):
    answered(("a.png", [8, 4, 28, 14], (320, 240)))
    sizes = f"a.png: {stated[0]} x {stated[1]} is stated, and the row has 320 x 240"
    assert sizes in refused(cli, "rows.jsonl", "--truth", coco(("a.png", stated)))
    runs = encode_mask(numpy.ones(stated[::-1], bool))
    mask = {"size": [*stated[::-1]], "counts": runs.counts}
    for size in ({"width": stated[0], "height": stated[1]}, {"masks": [mask]}):
        truth = write("truth.jsonl", [{"id": "a.png", "boxes": [BOX], **size}])
        assert sizes in refused(cli, "rows.jsonl", "--truth", truth)


def test_imported_truth_of_the_stored_size_is_upright(cli):
    photograph("a.png", 6)
    answered(("a.png", TURNED[6], UPRIGHT))
    words = ("import", coco(("a.png", STORED)), "--from", "coco", "-o", "truth.jsonl")
    assert cli(*words)[0] == 0
    assert ap(cli, "truth.jsonl") == pytest.approx(1.0)


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
