"""Rows of versions whose boxes have no confidence: they are read, and their runs resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pgcli.cli.main import main
from pgcli.rows import BOX_NUMBERS
from pgcli.sinks.reader import read_results
from pgcli.state.state_folder import RUN, state_folder

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


def age(output: Path) -> None:
    """Make the output one of the version before boxes had a confidence."""
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    for row in lines:
        for box in row["boxes"]:
            del box["confidence"]
    dump = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in lines]
    output.write_text("".join(f"{line}\n" for line in dump))
    record = state_folder(output) / RUN
    values = json.loads(record.read_text())
    del values["settings"]["confidence"]
    record.write_text(json.dumps(values))


def box_keys(output: Path) -> list[set[str]]:
    rows: list[dict[str, Any]] = [dict(row) for row in read_results(output)]
    assert len(rows) == len(IMAGES)
    return [set(box) for row in rows for box in row["boxes"]]


@pytest.mark.usefixtures("photos")
def test_all_rows_of_a_file_have_boxes_of_the_same_columns() -> None:
    """A run that an older version began goes on without the confidence."""
    output = Path("rows.jsonl")
    assert detect("rows.jsonl") == 0
    assert {*map(frozenset, box_keys(output))} == {frozenset({"label", *BOX_NUMBERS})}
    age(output)
    output.write_bytes(output.read_bytes().splitlines(keepends=True)[0])
    for file in state_folder(output).glob("progress*"):
        file.unlink()
    assert detect("rows.jsonl") == 0
    assert {*map(frozenset, box_keys(output))} == {frozenset({"label", *BOX_NUMBERS[:-1]})}
    assert main(["check", "rows.jsonl"]) == 0
    assert detect("rows.jsonl", "--overwrite") == 0
    assert {*map(frozenset, box_keys(output))} == {frozenset({"label", *BOX_NUMBERS})}


@pytest.mark.usefixtures("photos")
def test_view_export_and_read_accept_boxes_without_confidence() -> None:
    import pgcli

    assert detect("rows.jsonl") == 0
    age(Path("rows.jsonl"))
    assert main(["view", "rows.jsonl", "-o", "page.html"]) == 0
    for format in ("coco", "csv", "fiftyone", "imagefolder", "labelstudio", "yolo"):
        assert main(["export", "rows.jsonl", "--to", format, "-o", f"made-{format}"]) == 0
    boxes = [box for answer in pgcli.read("rows.jsonl") for box in answer.boxes]
    assert boxes
    assert all(box.confidence is None for box in boxes)
