"""Tests the page of many rows: its boxes and images are in a folder beside it."""

import json
import re
from pathlib import Path

import pytest

from pgcli.cli.main import main
from pgcli.results.gallery import gallery_page, thumbnails
from pgcli.results.gallery.cards import Cards, ResultFile
from tests.support.galleries import CANARY, HOSTILE, box, drawn, gallery, hostile, row
from tests.support.runs import wait_until

ROWS = 60


@pytest.fixture(autouse=True)
def bounds(monkeypatch):
    """Pages of more than 20 rows are large, and their parts small."""
    monkeypatch.setattr(gallery_page, "MAX_ROWS_IN_PAGE", 20)
    for module in (gallery_page, thumbnails):
        monkeypatch.setattr(module, "ROWS_PER_PART", 6)
        monkeypatch.setattr(module, "IMAGES_PER_PART", 4)


def rows() -> list[dict]:
    """Half of them have boxes; the last one has a label of its own."""
    made = [row(n, answer=f"answer {n}", logprob=-(n * 7 % ROWS) / 100) for n in range(ROWS)]
    for n in range(0, ROWS, 2):
        label = "owl" if n == ROWS - 2 else "cat"
        made[n] |= {"task": "detect", "answer": "<loc0001>", "boxes": [box(label)]}
    return made


@pytest.fixture
def large_page(tmp_path) -> Path:
    drawn(tmp_path, ROWS)
    return gallery(tmp_path, rows())


def test_large_page_keeps_images_and_boxes_in_a_folder(large_page, tmp_path, capsys):
    names = {file.name for file in (tmp_path / "gallery.html.files").iterdir()}
    assert {f"images-{n}.js" for n in range(15)} <= names
    assert {f"rows-{n}.js" for n in range(10)} <= names
    text = large_page.read_text()
    assert "strict-dynamic" in text
    assert '"xmin":' not in text
    gallery(tmp_path, rows()[:20])
    assert not (tmp_path / "gallery.html.files").exists()
    assert "strict-dynamic" not in large_page.read_text()
    arguments = ["view", str(tmp_path / "rows.jsonl"), "-o", str(large_page)]
    gallery(tmp_path, rows())
    capsys.readouterr()
    assert main([*arguments, "--images", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert re.search(r"the images and boxes are in \S+gallery\.html\.files, [\d.]+ kB", said)


def test_pages_that_differ_in_their_endings_have_folders_of_their_own(large_page, tmp_path):
    parts = {file: file.read_bytes() for file in (tmp_path / "gallery.html.files").iterdir()}
    other = str(tmp_path / "gallery.htm")
    assert main(["view", str(tmp_path / "rows.jsonl"), "-o", other, "--images", str(tmp_path)]) == 0
    assert {file: file.read_bytes() for file in parts} == parts
    assert len([*(tmp_path / "gallery.htm.files").iterdir()]) == len(parts)


def test_rows_of_other_programs_may_have_no_image(tmp_path, capsys):
    drawn(tmp_path, ROWS)
    made = rows()
    made[7] |= {"id": "seven", "image": None}
    gallery(tmp_path, made)
    assert main(["view", str(tmp_path / "rows.jsonl"), "--images", str(tmp_path)]) == 0
    assert "1 image is not shown: seven: The row names no image." in (capsys.readouterr().err)


def test_row_whose_boxes_are_all_invalid_has_a_part():
    """Without one, the page would take the row for one without boxes, which can be corrected."""
    invalid = [{"label": "cat", "xmin": "left"}]
    cards = Cards()
    cards.add(ResultFile("rows"), [row(0, boxes=invalid), row(1, boxes=[])])
    assert cards.columns["boxes"] == [[], None]
    assert dict(thumbnails.detail_parts(cards.details)) == {
        "rows-0": '[[[{"label":"cat","xmin":"left"}],null],null]'
    }


def test_details_have_the_tokens_of_answers(tmp_path):
    """They are most of an answer, and nobody searches for them."""
    answers = ["<loc0001><loc0002><loc0003><loc0004> owl", "two owls", None]
    cards = Cards()
    cards.add(ResultFile("rows"), [row(0, answer=answer, boxes=[box("owl")]) for answer in answers])
    cards.add(ResultFile("more"), [row(0, answer=answers[0], boxes=[])])
    assert cards.columns["answer"] == ["owl", *answers[1:], answers[0]]
    assert [details and details[2:] for details in cards.parsed_details()] == [
        [answers[0]], [], [], None
    ]  # fmt: skip


def test_foreign_folder_is_not_replaced(tmp_path):
    drawn(tmp_path, ROWS)
    (tmp_path / "gallery.html.files").mkdir()
    (tmp_path / "gallery.html.files" / "mine.txt").touch()
    with pytest.raises(AssertionError):
        gallery(tmp_path, rows())
    assert (tmp_path / "gallery.html.files" / "mine.txt").exists()
    assert not (tmp_path / "gallery.html").exists()
    gallery(tmp_path, rows()[:20])  # a page in one file needs no folder
    assert (tmp_path / "gallery.html.files" / "mine.txt").exists()


def test_export_in_place_of_the_folder_is_not_deleted(tmp_path):
    drawn(tmp_path, 20)
    gallery(tmp_path, rows()[:20])
    export = ["export", str(tmp_path / "rows.jsonl"), "--to", "yolo"]
    assert (
        main([*export, "-o", str(tmp_path / "gallery.html.files"), "--images", str(tmp_path)]) == 0
    )
    gallery(tmp_path, rows()[:20])
    assert (tmp_path / "gallery.html.files" / "data.yaml").exists()


def test_search_filters_and_sorting_cover_all_rows(open_page, large_page):
    shown = open_page(large_page, viewport={"width": 800, "height": 500})
    shown.says("60 answers")
    shown.expect(shown.all(".card img:not(.loading)").first).to_be_visible()
    shown.expect(shown.all(".card svg.marks").first).to_be_visible()
    assert 2 <= sum("images-" in url for url in shown.requests) < 15
    shown.all("#search").fill("answer 51")
    shown.shows("00051.png")
    shown.all("#search").fill("")
    shown.says("60 answers")
    shown.all(".chip").last.click()
    shown.shows("00058.png")
    shown.expect(shown.all(".card svg.marks text")).to_have_text("owl")
    shown.all(".chip").last.click()
    shown.page.select_option("#sort", "logprob")
    worst = max(range(ROWS), key=lambda n: n * 7 % ROWS)
    assert shown.ids()[0] == f"{worst:05}.png"
    shown.press("Escape", "j", "End")
    shown.expect(shown.all(".card.selected img:not(.loading)")).to_be_visible()
    shown.press("z")
    shown.expect(shown.all("#position")).to_have_text("60 of 60")
    shown.expect(shown.all("#stage img:not(.loading)")).to_be_visible()


def test_edits_of_a_large_page_are_saved_and_survive_a_reload(open_page, large_page, tmp_path):
    shown = open_page(large_page)
    shown.press("j", "a", "a", "z")
    shown.expect(shown.all("#details .edit-label")).to_have_count(1)
    shown.press("c")
    shown.page.keyboard.type("dog")
    shown.press("Enter", "Escape")
    shown.says("60 answers \u00b7 3 of 60 reviewed")
    edits = shown.page.evaluate
    wait_until(lambda: edits("(Object.values(localStorage)[0] ?? '').includes('dog')"))
    kept = edits("Object.values(localStorage)[0]")
    shown.page.reload()
    shown.says("60 answers \u00b7 3 of 60 reviewed")
    shown.expect(shown.all(".card").nth(2).locator(".tag")).to_have_text("dog")
    with shown.page.expect_download() as download:
        shown.press("s")
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert saved == json.loads(kept)
    (tmp_path / "edits.json").write_text(json.dumps(saved))
    out = tmp_path / "new.jsonl"
    arguments = [str(tmp_path / "edits.json"), str(tmp_path / "rows.jsonl"), "-o", str(out)]
    assert main(["apply", *arguments, "--rows", "accepted", "--quiet"]) == 0
    made = [json.loads(line) for line in out.read_text().splitlines()]
    assert [[one["label"] for one in answer["boxes"]] for answer in made] == [["cat"], [], ["dog"]]


def test_verdict_on_a_row_that_is_not_loaded_keeps_its_correction(open_page, large_page):
    """Its boxes are read late; until then, everything that the browser kept is saved, too."""
    shown = open_page(large_page)

    def saved_edits() -> list[tuple[int, str, list[str]]]:
        with shown.page.expect_download() as download:
            shown.press("s")
        edits = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["edits"]
        return [(e["index"], e["state"], [box["label"] for box in e["boxes"]]) for e in edits]

    for _ in range(2):
        shown.press("j", "z")
        shown.expect(shown.all("#details .edit-label")).to_have_count(1)
        shown.press("c")
        shown.page.keyboard.type("dog")
        shown.press("Enter", "Escape", "j")
    assert saved_edits() == [(0, "accepted", ["dog"]), (2, "accepted", ["dog"])]
    waiting = []
    shown.page.route("**/rows-0.js", lambda route: waiting.append(route))
    shown.page.reload(wait_until="commit")
    shown.says("60 answers \u00b7 2 of 60 reviewed")
    shown.press("j", "r")
    kept = [(0, "rejected", ["dog"]), (2, "accepted", ["dog"])]
    assert saved_edits() == kept
    waiting[0].continue_()
    shown.expect(shown.all(".card").first.locator(".tag")).to_have_text("dog")
    assert saved_edits() == kept
    shown.press("u")
    assert saved_edits() == [(0, "accepted", ["dog"]), (2, "accepted", ["dog"])]
    shown.expect(shown.all(".card").first.locator(".tag")).to_have_text("dog")


def test_missing_folder_is_named(open_page, large_page, tmp_path):
    (tmp_path / "gallery.html.files").rename(tmp_path / "elsewhere")
    shown = open_page(large_page)
    shown.expect(shown.all("#status")).to_contain_text(
        "./gallery.html.files/ is missing or belongs to another page: keep the two together"
    )
    shown.all("#search").fill("answer 51")
    shown.shows("00051.png")
    assert any("ERR_FILE_NOT_FOUND" in problem for problem in shown.problems)
    shown.problems.clear()


def test_folder_of_another_page_is_not_shown(open_page, large_page, tmp_path):
    page = large_page.read_text()
    gallery(tmp_path, rows())
    large_page.write_text(page)  # the earlier page beside the later folder
    shown = open_page(large_page)
    shown.expect(shown.all("#status")).to_contain_text("belongs to another page")
    assert shown.all(".card img").count() == 0


def test_hostile_rows_of_a_large_page_run_no_script(open_page, tmp_path):
    shown = open_page(gallery(tmp_path, hostile()))
    shown.press("j", "z", *["ArrowRight"] * len(HOSTILE), "Escape")
    assert shown.page.evaluate("window.canary") is None
    text = shown.all("#cards").inner_text()
    for foreign in HOSTILE[:8]:
        assert foreign in text
    for part in (tmp_path / "gallery.html.files").glob("*.js"):
        body = part.read_bytes()
        assert body.isascii()
        assert body.count(b"\n") == 1
        assert CANARY.encode() not in re.sub(rb"'(?:[^'\\\\]|\\\\.)*'", b"", body)


@pytest.mark.nightly
def test_a_hundred_thousand_rows_of_boxes_open_in_seconds(open_page, tmp_path):
    """The bound leaves room for a slow machine; on two idle cores it takes about a second."""
    labels = [f"label {n}" for n in range(20)]
    many = [row(n, boxes=[box(labels[(n + k) % 20]) for k in range(5)]) for n in range(100_000)]
    shown = open_page(gallery(tmp_path, many))
    milliseconds = shown.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert milliseconds < 5_000
    shown.all("#search").fill("99999.png")
    shown.shows("99999.png")
    shown.all("#search").fill("")
    shown.page.select_option("#sort", "confidence")
    shown.says("100,000 answers")
