"""merge and diff: one row for each image and prompt, and the rows in which two files differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import pgcli
from pgcli.parsing import detection_text
from tests.support.answers import BOX, answer
from tests.support.command import Command
from tests.support.exporting import read_rows, row, saved
from tests.support.save_rows import save


def file(name: str, *rows: dict[str, Any]) -> str:
    saved(Path(name), rows)
    return name


# --- merge


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_merged_file_has_the_columns_of_all_files(cli: Command, kind: str) -> None:
    segmented = answer(1, task="segment", boxes=(BOX,), masks=(None,))
    save("a.parquet", answer(0, kept={"sku": 7}), keep=("sku",))
    save("b.jsonl", segmented, extras=("masks",))
    assert cli("merge", "b.jsonl", "a.parquet", "-o", f"c.{kind}")[0] == 0
    first, second = pgcli.read(f"c.{kind}")
    assert (first.kept, second.kept) == ({"sku": 7}, {"sku": None})
    assert (first.masks, second.masks) == (None, (None,))
    assert second.boxes == (BOX,)


def test_columns_with_half_a_character_in_their_names_are_merged(cli: Command) -> None:
    one = file("a.jsonl", row(0) | {"\ud800": "\ud800"})
    assert cli("merge", one, "-o", "b.jsonl")[0] == 0
    assert read_rows("b.jsonl")[0]["\ufffd"] == "\ufffd"


def test_file_may_be_merged_into_itself(cli: Command) -> None:
    one, other = file("a.jsonl", row(0)), file("b.jsonl", row(1))
    assert cli("merge", one, other, "-o", one, "--overwrite")[0] == 0
    assert [found["index"] for found in read_rows(one)] == [0, 1]


# --- diff


def test_image_that_was_added_shifts_no_row(cli: Command) -> None:
    one = file("a.jsonl", *(row(n) for n in range(50)))
    shifted = [row(n + 1, id=f"{n}.png") for n in range(50)]
    other = file("b.jsonl", row(0, id="new.png"), *shifted)
    code, out, _ = cli("diff", one, other)
    assert (code, len(out.splitlines())) == (5, 1)
    assert json.loads(out)["id"] == "new.png"


@pytest.mark.parametrize("root", [(), ("--root", "photos")])
def test_detections_that_went_out_to_coco_and_come_back_are_equal(
    cli: Command, root: tuple[str, ...]
) -> None:
    """At places over all of the model's 1,024, in images of any size."""
    rows = []
    for index, (width, height) in enumerate([(64, 48), (4032, 3024), (1023, 7), (640, 480)]):
        name = f"sub/{index}.png"
        path = Path("photos") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (width, height)).save(path)
        x, y = width / 1023, height / 1023
        boxes = tuple(
            type(BOX)(label, n * x, n * y, (n + 1 + index) * x, 1023 * y, 0.25, 0.5)
            for n, label in zip(range(0, 1000, 17), ["star", "circle"] * 40, strict=False)
        )
        found = () if index == 3 else boxes
        plain = [{name: getattr(box, name) for name in box.__slots__} for box in found]
        said = detection_text(plain, width=width, height=height)
        known = {"id": name, "image": str(path), "task": "detect", "prompt": "detect star ; circle"}
        size = {"width": width, "height": height}
        rows.append(row(index, **known, **size, boxes=found, answer=said))
    file("rows.jsonl", *rows)
    assert cli("export", "rows.jsonl", "--to", "coco", "-o", "c.json", *root)[0] == 0
    assert cli("import", "c.json", "--from", "coco", "-o", "again.jsonl", *root)[0] == 0
    code, out, err = cli("diff", "rows.jsonl", "again.jsonl")
    assert (code, out, "rows: 4 equal" in err) == (0, "", True), out[:2000]


@pytest.mark.parametrize("root", [(), ("--root", "moved")])
def test_images_of_rows_without_a_run_are_found_by_root_or_beside_the_file(
    cli: Command, tmp_path: Path, root: tuple[str, ...]
) -> None:
    """Rows that were merged in another folder; all that reads images finds them."""
    folder = tmp_path / (root[1] if root else "work") / "photos"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 6), "red").save(folder / "a.png")
    Path("work").mkdir(exist_ok=True)
    size = {"width": 8, "height": 6}
    known = {"id": "a.png", "image": "photos/a.png", "task": "detect", "prompt": "detect a"}
    box_ = type(BOX)("a", 1, 1, 5, 5, 0.5, 0.5)
    file("work/one.jsonl", row(0, **known, **size, boxes=(box_,)))
    assert cli("merge", "work/one.jsonl", "-o", "work/merged.jsonl")[0] == 0
    words = ("work/merged.jsonl", "--overwrite")
    out, _, err = cli("view", *words, "-o", "p.html", "--draw", "drawn", *root)
    assert (out, "not shown" in err, [*Path("drawn").iterdir()]) == (
        0,
        False,
        [Path("drawn/a.png")],
    )
    for name in ("yolo", "fiftyone", "webdataset"):
        assert cli("export", *words, "--to", name, "-o", f"out-{name}", *root)[0] == 0
    assert (tmp_path / "out-yolo/images/a.png").resolve() == folder / "a.png"
    coco = ("--to", "coco", "-o", "c.json", "--root", str(folder))
    assert cli("export", *words, *coco)[0] == 0
    assert json.loads(Path("c.json").read_text())["images"][0]["file_name"] == "a.png"
    code, _, err = cli("export", *words, "--to", "coco", "-o", "c.json", "--root", "none")
    assert (code, "none is not a folder" in err) == (2, True)
