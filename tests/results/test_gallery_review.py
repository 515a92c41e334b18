"""Tests reviews on the page of `pgcli view` in a browser: verdicts, corrections and drawn boxes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.rows import answer_digest
from tests.support.exporting import read_rows, saved
from tests.support.pages import HOSTILE, box, gallery, hostile, row, sample_rows

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")


def applied(
    folder: Path, edits: list[dict[str, Any]], *options: str, rows: str = "rows.jsonl"
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the rows of `apply` with these edits."""
    file = saved(folder / "edits.json", [{"format": "pgcli edits", "version": 1, "edits": edits}])
    made = folder / "new.jsonl"
    code = main(["apply", str(file), str(folder / rows), "-o", str(made), *options])
    return code, read_rows(made) if made.exists() else []


def test_reviewed_rows_are_saved_and_filtered(open_page, page):
    shown = open_page(page)
    assert shown.all("#save").is_hidden()
    shown.press("j", "a", "r")
    shown.says("4 answers · 2 of 4 reviewed")
    shown.all(".card").nth(3).locator(".accepted").click()
    edits = shown.saved_edits()
    assert [(edit["index"], edit["id"], edit["state"]) for edit in edits] == [
        (0, "00000.png", "accepted"),
        (1, "00001.png", "rejected"),
        (3, "00003.png", "accepted"),
    ]
    assert [edit["digest"] for edit in edits] == [
        answer_digest(sample_rows()[n]) for n in (0, 1, 3)
    ]
    assert edits[0].keys() == {"index", "id", "prompt", "digest", "state"}
    shown.press("u", "u")
    shown.says("4 answers · 1 of 4 reviewed")
    for name, ids in [("rejected", []), ("accepted", ["0"]), ("open", ["1", "2", "3"])]:
        shown.page.select_option("#review", name)
        assert [one[4] for one in shown.ids()] == ids


def test_answers_and_labels_are_corrected(open_page, page):
    shown = open_page(page)
    shown.press("j", "c")
    shown.page.keyboard.type("no")
    shown.press("Escape", "c")
    shown.page.keyboard.type("a green cat")
    shown.press("Enter", "j", "j", "c")
    shown.page.keyboard.type(" star;x ")
    shown.press("Tab")
    shown.all("[aria-label='Remove box 2']").click()
    assert shown.all("#stage svg.marks text").all_text_contents() == ["star,x 0.5"]
    shown.press("Escape")
    assert shown.all(".card .answer").first.inner_text() == "a green cat"
    assert shown.all(".card").nth(2).locator(".tag").all_inner_texts() == ["star,x"]
    edits = shown.saved_edits()
    labels = [edit.get("boxes") and [box["label"] for box in edit["boxes"]] for edit in edits]
    assert [(edit.get("answer"), edit["state"]) for edit in edits] == [
        ("a green cat", "accepted"),
        (None, "accepted"),
    ]
    assert labels == [None, ["star,x"]]
    code, rows = applied(page.parent, edits, "--rows", "accepted")
    assert code == 0
    assert [one["answer"] for one in rows] == [
        "a green cat",
        "<loc0102><loc0102><loc0512><loc0512> star,x",
    ]
    shown.page.select_option("#review", "corrected")
    assert shown.ids() == ["00000.png", "00002.png"]
    shown.press("u", "u", "u")
    assert shown.all("#save").is_disabled()
    shown.page.select_option("#review", "")
    assert shown.all(".card .answer").first.inner_text() == "a red cat"
    assert shown.all(".card").nth(2).locator(".tag").all_inner_texts() == ["cat", "dog"]


def test_boxes_are_moved_resized_and_drawn(open_page, tmp_path):
    """With the mouse and the keyboard, undone one by one, and applied to the rows."""
    Image.new("RGB", (200, 100), "navy").save(tmp_path / "00000.png")
    boxes = [box("cat", 20, 20, 60, 60)]
    found = row(0, answer="", task="detect", boxes=boxes, width=200, height=100)
    shown = open_page(gallery(tmp_path, [found]))
    shown.press("j", "Enter", "n")
    assert shown.all(".handle").count() == 4
    shown.press("ArrowRight", "Shift+ArrowDown", "Escape")
    assert shown.all(".handle").count() == 0
    assert shown.all("#zoom").is_visible()
    drawing = shown.all("#stage svg.marks")
    place = drawing.bounding_box()
    scale = place["width"] / 200
    top = place["y"] + (place["height"] - 100 * scale) / 2

    def drag(start: tuple[float, float], end: tuple[float, float]) -> None:
        for step, (x, y) in enumerate((start, end)):
            shown.page.mouse.move(place["x"] + x * scale, top + y * scale, steps=3)
            shown.page.mouse.down() if step == 0 else shown.page.mouse.up()

    drag((40, 40), (50, 35))  # the box as a whole
    drag((72, 56), (90, 70))  # its lower right corner
    shown.press("d")
    drag((120, 10), (150, 40))
    shown.page.keyboard.type("dog")
    shown.press("Enter")
    (edit,) = shown.saved_edits()
    corners = [[box[name] for name in ("xmin", "ymin", "xmax", "ymax")] for box in edit["boxes"]]
    assert np.allclose(corners, [[32, 15, 90, 71], [120, 10, 150, 40]], atol=1.5)
    assert [(box["label"], box.get("source")) for box in edit["boxes"]] == [
        ("cat", 0),
        ("dog", None),
    ]
    code, (corrected,) = applied(tmp_path, [edit])
    assert (code, [box["label"] for box in corrected["boxes"]]) == (0, ["cat", "dog"])
    shown.press("Escape", "Escape", "z", "n", "n", "x")
    assert shown.all("#details .edit-label").count() == 1
    shown.press("u")
    assert shown.all("#details .edit-label").count() == 2
    shown.press("d", "Enter", "Escape", "u", "u")
    assert shown.all("#details .edit-label").count() == 2


def test_edits_of_hostile_rows_are_of_their_rows(open_page, tmp_path):
    shown = open_page(gallery(tmp_path, hostile()))
    shown.press("j", *["a"] * len(HOSTILE))
    saved(tmp_path / "plain.jsonl", [row(n, answer="x") for n in range(2)])
    edits = shown.saved_edits()
    assert shown.page.evaluate("window.canary") is None
    assert applied(tmp_path, edits, rows="plain.jsonl") == (2, [])
    reviewable = shown.all("#status").inner_text().split(" of ")[-1]
    code, rows = applied(tmp_path, edits, "--rows", "accepted")
    assert (code, reviewable) == (0, f"{len(rows)} reviewed")


def test_browser_asks_before_it_leaves_a_page_with_unsaved_edits(open_page, page):
    shown = open_page(page)
    shown.press("j", "a")
    with shown.page.expect_event("dialog") as dialog:
        shown.page.close(run_before_unload=True)
    assert dialog.value.type == "beforeunload"
    dialog.value.dismiss()
    shown.problems.clear()
    assert len(shown.saved_edits()) == 1
    with shown.page.expect_event("close"):
        shown.page.close(run_before_unload=True)
