"""One reader of labels: import, eval and train read every format, with the same result."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from pgcli.inputs import ReadOptions
from pgcli.training.rows import RowStore, TrainingRows
from pgcli.training.sources import RowReader
from tests.support.evaluating import evaluate, refused, write
from tests.support.exporting import box, read_rows, row
from tests.support.plugins import install_plugins

pytestmark = pytest.mark.usefixtures("workdir")


def coco() -> str:
    """A box from 16, 12 to 48, 24 in a.png, and nothing in b.png."""
    images = [
        {"id": n, "file_name": f"{name}.png", "width": 64, "height": 48}
        for n, name in enumerate("ab")
    ]
    annotation = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [16, 12, 32, 12]}
    known = {"annotations": [annotation], "categories": [{"id": 1, "name": "cat"}]}
    Path("made.json").write_text(json.dumps({"images": images, **known}))
    return "made.json"


def label_studio() -> str:
    value = {"x": 25, "y": 25, "width": 50, "height": 25, "rectanglelabels": ["cat"]}
    size = {"original_width": 64, "original_height": 48}
    regions = [[size | {"type": "rectanglelabels", "value": value}], []]
    tasks = [
        {"data": {"image": f"{name}.png"}, "annotations": [{"result": own}]}
        for name, own in zip("ab", regions, strict=True)
    ]
    Path("made.json").write_text(json.dumps(tasks))
    return "made.json"


def yolo() -> str:
    for folder in ("made/images", "made/labels"):
        Path(folder).mkdir(parents=True)
    for name, line in (("a", "0 0.5 0.375 0.5 0.25"), ("b", "")):
        Path(f"{name}.png").rename(f"made/images/{name}.png")
        Path(f"made/labels/{name}.txt").write_text(line)
    Path("made/data.yaml").write_text("names: [cat]")
    return "made"


def plugin() -> str:
    Path("a.png").unlink()
    Image.new("RGB", (64, 48)).crop((0, 0, 32, 12)).save("a.png")
    Path("made.whole").write_text("cat a.png")
    return "made.whole"


FORMATS: dict[str, Callable[[], str]] = {
    "coco": coco,
    "labelstudio": label_studio,
    "yolo": yolo,
    "whole": plugin,
}


@pytest.fixture(autouse=True)
def photos(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugins({"imports whole": "tests.support.plugins:WHOLE"}, monkeypatch)
    for name in "ab":
        Image.new("RGB", (64, 48), name == "a" and "red").save(f"{name}.png")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_imported_a_truth_and_a_source_of_training(cli, tmp_path, format):
    made = FORMATS[format]()
    root = ("--images", made) if format == "yolo" else ()
    assert cli("import", made, "--from", format, "-o", "truth.jsonl", *root)[0] == 0
    rows = read_rows("truth.jsonl")
    corners = (0, 0, 32, 12) if format == "whole" else (16, 12, 48, 24)
    assert [(one["id"], len(one["boxes"])) for one in rows] == [("a.png", 1), ("b.png", 0)][
        : len(rows)
    ]
    sides = [rows[0]["boxes"][0][name] for name in ("xmin", "ymin", "xmax", "ymax")]
    assert sides == pytest.approx(corners)
    size = {"width": rows[0]["width"], "height": rows[0]["height"]}
    known = {"task": "detect", "prompt": "detect cat", **size}
    boxes = (box("cat", *map(float, corners)),)
    write("rows.jsonl", [row(0, id="a.png", boxes=boxes, **known)])
    found = evaluate(cli, "rows.jsonl", "--truth", made, "--metric", "ap")
    assert (found["metrics"]["ap"]["value"], found["surplus"]) == (pytest.approx(1.0), 0)
    assert found["missing"] == len(rows) - 1
    store = RowStore(tmp_path)
    targets = RowReader().read([made], ReadOptions(), TrainingRows(store))
    answers = [(one["id"], one["prompt"], one["answer"]) for one in rows]
    assert [(one.item.id, one.prompt, one.target) for one in targets] == answers
    store.close()


def test_columns_are_no_part_of_annotations(cli):
    write("rows.jsonl", [row(0, id="a.png")])
    made = coco()
    message = refused(cli, "rows.jsonl", "--truth", made, "--answer-column", "x")
    assert "--answer-column has no effect on made.json, which is not a table" in message
    words = ("train", made, "--answer-column", "x", "--model", "demo", "-o", "m", "--dry-run")
    code, _, err = cli(*words)
    assert (code, "made.json has no column 'x'" in err) == (2, True), err
