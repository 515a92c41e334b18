"""Rows of boxes without a confidence, as of other programs, are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pgcli.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
IMAGES = ("one.png", "stars.jpg", "dusk.jpg")

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with a folder of three images."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for name in IMAGES:
        shutil.copy(EXAMPLES / name, f"photos/{name}")


def detect(output: str, *options: str) -> int:
    command = ["detect", "photos", "--object", "star", "--model", "demo", "-o", output]
    return main([*command, "--quiet", *options])


def without_confidence(output: Path) -> None:
    """Remove the confidence of all boxes."""
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    for row in lines:
        for box in row["boxes"]:
            del box["confidence"]
    dump = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in lines]
    output.write_text("".join(f"{line}\n" for line in dump))


@pytest.mark.usefixtures("photos")
def test_view_export_and_read_accept_boxes_without_confidence() -> None:
    import pgcli

    assert detect("rows.jsonl") == 0
    without_confidence(Path("rows.jsonl"))
    assert main(["view", "rows.jsonl", "-o", "page.html"]) == 0
    for format in ("coco", "csv", "fiftyone", "imagefolder", "labelstudio", "yolo"):
        assert main(["export", "rows.jsonl", "--to", format, "-o", f"made-{format}"]) == 0
    boxes = [box for answer in pgcli.read("rows.jsonl") for box in answer.boxes]
    assert boxes
    assert all(box.confidence is None for box in boxes)
