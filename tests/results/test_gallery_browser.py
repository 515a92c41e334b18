"""Tests the page of `pgcli view` in a browser: opening, search, filters and keys."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.rle import encode_mask_parts
from pgcli.rows import answer_digest
from tests.support.exporting import read_rows, saved
from tests.support.galleries import CANARY, HOSTILE, box, drawn, failed, hostile, row
from tests.support.runs import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as running:
        # the sandbox does not start as root, which containers use
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = running.chromium.launch(executable_path=found, args=options)
        yield opened
        opened.close()


class OpenPage:
    """A page in the browser, with its errors and its requests."""

    def __init__(self, browser: Any, file: Path, **settings: Any):
        self.context = browser.new_context(**({"viewport": WIDE} | settings))
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        self.page.on("console", self._note)
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        playwright.expect(self.all(".card").first).to_be_visible()

    def _note(self, message: Any) -> None:
        if message.type != "info":  # such as that a key was faster than the focus of a new window
            self.problems.append(message.text)

    def all(self, selector: str) -> Any:
        return self.page.locator(selector)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def says(self, text: str) -> None:
        playwright.expect(self.all("#status")).to_have_text(text)

    def shows(self, *ids: str) -> None:
        playwright.expect(self.all(".card .id")).to_have_text(list(ids))

    def ids(self) -> list[str]:
        """The ids of the cards in the document, in display order."""
        cards = self.all(".card").evaluate_all(
            "all => all.map(c => [+c.dataset.index, c.querySelector('.id').textContent])"
        )
        return [name for _, name in sorted(cards)]


WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 800}


@pytest.fixture
def open_page(browser) -> Iterator[Any]:
    """Opens pages, and checks that none logs anything or sends a request."""
    opened: list[OpenPage] = []

    def show(file: Path, **settings: Any) -> OpenPage:
        opened.append(OpenPage(browser, file, **settings))
        return opened[-1]

    yield show
    for one in opened:
        assert one.problems == []
        assert [
            url for url in one.requests if not url.startswith(("file:", "data:", "blob:"))
        ] == []
        one.context.close()


def gallery(folder: Path, rows: list[dict[str, Any]], *options: str) -> Path:
    file = saved(folder / "rows.jsonl", rows)
    page = folder / "gallery.html"
    arguments = ["view", str(file), "-o", str(page), "--images", str(folder), *options]
    assert main([*arguments, "--quiet", "--overwrite"]) == 0
    return page


def some() -> list[dict[str, Any]]:
    ring = np.hypot(*np.ogrid[-10:10, -10:10]) < 9
    ring[:10, 10:] = False
    mask = encode_mask_parts([(ring, 5, 5)], size=(30, 40))
    masks = [{"codes": [0] * 16, "rle": {"size": [30, 40], "counts": mask.counts}}]
    return [
        row(0, answer="a red cat", logprob=-0.5, decode_ms=1.0),
        row(1, answer="a blue dog", logprob=-0.1, decode_ms=9.0),
        row(2, answer="<loc0001>", boxes=[box("cat"), box("dog")], prompt="detect", logprob=-0.9),
        row(3, answer="", boxes=[box("cat", 5, 5, 25, 25)], masks=masks, logprob=-0.7),
        failed(4),
        failed(5, "missing", "There is no such file."),
    ]


@pytest.fixture
def page(tmp_path) -> Path:
    drawn(tmp_path, 5)
    return gallery(tmp_path, some())


@pytest.mark.parametrize("assets", ["", "a folder #1"])
def test_page_opens_from_a_file_with_its_images(open_page, tmp_path, assets):
    drawn(tmp_path, 5)
    options = ("--assets", str(tmp_path / assets)) if assets else ()
    shown = open_page(gallery(tmp_path, some(), *options))
    assert shown.ids() == ["00000.png", "00001.png", "00002.png", "00003.png"]
    shown.says("4 answers")
    playwright.expect(shown.all(".card img:not(.loading)")).to_have_count(4)
    sizes = shown.all(".card img").evaluate_all("all => all.map(i => i.naturalWidth)")
    assert sizes == [40] * 4
    assert shown.all(".card img").nth(2).get_attribute("alt") == "00002.png: 1 cat, 1 dog"
    assert shown.requests[0].startswith("file:")


def test_boxes_and_masks_are_at_their_positions_in_the_image(open_page, page):
    shown = open_page(page)
    drawing = shown.all(".card").nth(2).locator("svg.marks")
    assert drawing.get_attribute("viewBox") == "0 0 40 30"
    frame = drawing.locator("rect[fill=none]").last
    assert [frame.get_attribute(name) for name in ("x", "y", "width", "height")] == [
        "4",
        "3",
        "16",
        "12",
    ]
    assert drawing.locator("text").all_text_contents() == ["cat", "dog"]
    # the mask as drawn by the browser: a circle around 15, 15 without its upper right
    inside = shown.all(".card path").evaluate(
        "p => [[15, 17], [12, 12], [18, 18], [11, 18], [18, 11], [7, 7], [23, 23], [30, 15]]"
        ".map(([x, y]) => p.isPointInFill(new DOMPoint(x, y)))"
    )
    assert inside == [True, True, True, True, False, False, False, False]
    shown.press("b")
    playwright.expect(drawing).to_be_hidden()


def test_masks_that_are_not_of_their_image_are_not_drawn(open_page, tmp_path):
    drawn(tmp_path, 1)
    square = encode_mask_parts([(np.ones((10, 20), bool), 7, 9)], size=(30, 40)).counts
    masks = [
        {"rle": {"size": size, "counts": counts}}
        for size, counts in (
            ([30, 40], square),
            ([300000, 400000], square),
            ([30, 41], square),
            ([30, 40], square[:-1]),
            ([30, 40], "PPPPPPPPPPPPPPPP1"),
            ([30, 40], "\x7f<"),
            ([30, 40], None),
            (None, 3),
        )
    ]
    boxes = [box(f"{number}", 0, 0, 9, 9) for number in range(len(masks))]
    shown = open_page(gallery(tmp_path, [row(0, boxes=boxes, masks=masks)]))
    paths = shown.all(".card svg.marks path")
    playwright.expect(paths).to_have_count(1)
    sides = "path => { const b = path.getBBox(); return [b.x, b.y, b.width, b.height]; }"
    assert paths.evaluate(sides) == [7, 9, 20, 10]


def test_scores_of_the_same_texts_are_a_matrix(open_page, tmp_path):
    drawn(tmp_path, 3)
    rows = [
        {
            **{name: row(n)[name] for name in ("index", "id", "image", "width", "height")},
            "scores": [
                {"text": text, "cosine": 0.1, "score": 0.5, "probability": share}
                for text, share in zip(("a cat", CANARY), shares, strict=True)
            ],
            **dict.fromkeys(("model", "error", "error_message")),
        }
        for n, shares in enumerate([(0.9, 0.1), (0.2, 0.8), (0.6, 0.4)])
    ]
    shown = open_page(gallery(tmp_path, rows))
    assert shown.all("#texts button").all_text_contents() == ["a cat", CANARY]
    cells = shown.all(".card .share-cell")
    assert cells.all_text_contents() == ["90.0%", "10.0%", "20.0%", "80.0%", "60.0%", "40.0%"]
    assert shown.all(".share-cell b").all_text_contents() == ["90.0%", "80.0%", "60.0%"]
    shown.all("#texts button").last.click()
    playwright.expect(shown.all(".card .id").first).to_have_text("00001.png")
    assert shown.all(".card .id").all_text_contents() == ["00001.png", "00002.png", "00000.png"]
    shown.press("j", "z")
    playwright.expect(shown.all("#details h3").first).to_have_text("Texts")
    rows[2]["scores"] = rows[2]["scores"][:1]
    shown = open_page(gallery(tmp_path, rows))
    playwright.expect(shown.all("#texts")).to_be_hidden()
    playwright.expect(shown.all(".card .shares")).to_have_count(3)


@pytest.mark.slow
def test_search_covers_names_answers_prompts_and_labels(open_page, page):
    shown = open_page(page)
    for words, found in [
        ("blue", ["00001.png"]),
        ("RED cat", ["00000.png"]),
        ("cat", ["00000.png", "00002.png", "00003.png"]),
        ("00003", ["00003.png"]),
        ("caption 00001", ["00001.png"]),
        ("cat red", ["00000.png"]),
        ('"red cat"', ["00000.png"]),
        ('"cat red"', []),
        ('"00001.png" caption', ["00001.png"]),
        ("\u201c00002.png\u201d cat", ["00002.png"]),
    ]:
        shown.press("/")
        shown.page.keyboard.type(words)
        shown.shows(*found)
        if found:
            shown.says(f"{len(found)} answer{'s' * (len(found) > 1)} of 4")
        shown.press("Escape")
    shown.press("/")
    shown.page.keyboard.type("nowhere")
    playwright.expect(shown.all("#empty")).to_be_visible()
    shown.all("#reset").click()
    shown.says("4 answers")


@pytest.mark.slow
def test_labels_prompts_and_errors_filter(open_page, page):
    shown = open_page(page)
    shown.all(".chip").filter(has_text="dog").click()
    assert shown.ids() == ["00002.png"]
    shown.all(".chip").filter(has_text="dog").click()
    shown.page.select_option("#prompt", label="detect")
    assert shown.ids() == ["00002.png"]
    shown.page.select_option("#prompt", "")
    shown.press("e")
    shown.says("2 errors")
    assert shown.ids() == ["00004.png", "00005.png"]
    assert "It ends early." in shown.all(".card").nth(0).inner_text()
    shown.page.select_option("#code", "missing")
    assert shown.ids() == ["00005.png"]
    assert shown.all(".card").inner_text().startswith("missing")


@pytest.mark.slow
def test_cards_are_sorted_by_the_selected_column(open_page, page):
    shown = open_page(page)
    for sort, order in [("logprob", "2301"), ("time", "1230"), ("confidence", "2301")]:
        shown.page.select_option("#sort", sort)
        assert "".join(name[4] for name in shown.ids()) == order
    shown.all("#direction").click()
    assert [name[4] for name in shown.ids()][2:] == ["0", "1"]  # rows without boxes are always last


@pytest.mark.slow
def test_slider_hides_boxes_below_a_confidence(open_page, tmp_path):
    drawn(tmp_path, 2)
    unknown = box("bird") | {"confidence": None}
    rows = [
        row(0, task="detect", boxes=[box("cat", score=0.9), box("dog", score=0.3), unknown]),
        row(1, task="detect", boxes=[box("dog", score=0.2)]),
    ]
    shown = open_page(gallery(tmp_path, rows))
    groups = shown.all(".card svg.marks g")
    playwright.expect(groups).to_have_count(4)
    shown.all("#confidence").fill("0.5")
    playwright.expect(groups).to_have_count(2)
    playwright.expect(shown.all("#field-confidence output")).to_have_text("0.50")
    playwright.expect(shown.all(".card .answer.none")).to_have_text("no box this confident")
    shown.press("Escape", "z")
    playwright.expect(shown.all("#details h3").first).to_have_text("2 boxes")
    assert [one.get_attribute("data-box") for one in shown.all("#stage g").all()] == ["0", "2"]
    shown.press("Escape")
    shown.all(".chip").filter(has_text="dog").click()
    playwright.expect(shown.all("#empty")).to_be_visible()
    shown.all("#reset").click()
    playwright.expect(groups).to_have_count(4)


@pytest.mark.slow
def test_keys_navigate_cards_and_images(open_page, page):
    shown = open_page(page)
    shown.press("j", "j", "k", "ArrowRight")
    playwright.expect(shown.all(".card.selected .id")).to_have_text("00001.png")
    focused = shown.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "Open 00001.png"
    shown.press("Enter")
    playwright.expect(shown.all("#zoom")).to_be_visible()
    playwright.expect(shown.all("#position")).to_have_text("2 of 4")
    assert "a blue dog" in shown.all("#details").inner_text()
    shown.press("ArrowRight")
    playwright.expect(shown.all("#details h2")).to_have_text("00002.png")
    playwright.expect(shown.all("#stage svg.marks text").first).to_have_text("cat 0.5")
    shown.press("Escape")
    playwright.expect(shown.all("#zoom")).to_be_hidden()
    playwright.expect(shown.all(".card.selected .id")).to_have_text("00002.png")
    shown.press("z")
    playwright.expect(shown.all("#zoom")).to_be_visible()
    shown.press("z")
    shown.press("?")
    playwright.expect(shown.all("#panel")).to_contain_text("search")
    shown.press("Escape")
    shown.all("#about").click()
    playwright.expect(shown.all(".plot")).to_be_visible()
    assert "vision 10 ms" in shown.all(".legend").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_page_is_readable_in_both_colour_schemes_at_any_width(open_page, page, scheme, size):
    shown = open_page(page, color_scheme=scheme, viewport=size)
    look = "e => [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]"
    words = shown.all(".card .answer").first
    ink, ground = (brightness(colour) for colour in words.evaluate(look))
    assert (ink < 80 and ground > 200) if scheme == "light" else (ink > 200 and ground < 80)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    cards = shown.all(".card").evaluate_all("all => all.map(c => c.getBoundingClientRect().right)")
    assert max(cards) <= size["width"]
    shown.press("j", "z")
    side = shown.all("#zoom .side").bounding_box()
    assert side["x"] + side["width"] <= size["width"]
    assert side["y"] + side["height"] <= size["height"]


def brightness(colour: str) -> float:
    return sum(float(part) for part in re.findall(r"[\d.]+", colour)[:3]) / 3


def test_hostile_rows_are_text_and_run_no_script(open_page, tmp_path):
    shown = open_page(gallery(tmp_path, hostile()))
    for errors in (False, True):
        shown.press("j", "z", *["ArrowRight"] * len(HOSTILE), "Escape")
        shown.press("e") if not errors else None
    shown.all("#about").click()
    shown.press("Escape", "e")
    assert shown.page.evaluate("window.canary") is None
    text = shown.all("#cards").inner_text()
    for foreign in HOSTILE[:8]:
        assert foreign in text
    assert r"name\u202egnp.exe" in text
    assert shown.all("#cards :is(script, a, iframe, object, [onerror], [onload])").count() == 0
    assert shown.all("script:not([type])").count() == 1
    shown.press("/")
    shown.page.keyboard.type(f"<img src=x onerror={CANARY}>")
    shown.says("1 answer of 14")


def test_content_security_policy_blocks_injected_scripts(browser, page):
    shown = OpenPage(browser, page)
    shown.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', "
        '\'<img src=x onerror="window.canary=1"><img src="http://127.0.0.1:9/a.png">\')'
    )
    shown.page.wait_for_timeout(200)
    assert shown.page.evaluate("window.canary") is None
    assert any("Content Security Policy" in problem for problem in shown.problems)
    shown.context.close()


def test_several_files_are_shown_side_by_side(open_page, tmp_path):
    drawn(tmp_path, 3)
    one = saved(tmp_path / "one.jsonl", [row(n, answer="same") for n in range(3)])
    other = saved(
        tmp_path / "other.jsonl", [row(0, answer="same"), row(1, answer="else"), failed(2)]
    )
    page = tmp_path / "both.html"
    assert main(["view", str(one), str(other), "-o", str(page), "--images", str(tmp_path)]) == 0
    shown = open_page(page)
    shown.says("3 images")
    assert shown.all(".card").nth(1).locator(".answer").all_text_contents() == ["same", "else"]
    shown.all("#differ").click()
    assert shown.ids() == ["00001.png", "00002.png"]
    shown.all("#differ").click()
    shown.page.select_option("#file", label="other.jsonl")
    assert shown.all(".card .answer").all_text_contents() == ["same", "else"]
    shown.press("j", "z")
    playwright.expect(shown.all("#stage .figure")).to_have_count(1)


LONG = "what colour is the background of this image, and is there anything else to know?"
PROMPTS = ("is there a star anywhere in it?", "how many shapes are there?", LONG)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_each_prompt_is_shown_once_below_its_image(open_page, tmp_path, size):
    drawn(tmp_path, 3)
    rows = [
        row(n, task="ask", prompt=prompt, answer=f"{n}: {prompt.split()[0]}")
        for n in range(3)
        for prompt in PROMPTS
    ]
    shown = open_page(gallery(tmp_path, rows), viewport=size)
    shown.says("3 images")
    card = shown.all(".card").first
    playwright.expect(card.locator("img")).to_have_count(1)
    assert card.inner_text().split("\n") == [
        *(one for prompt in PROMPTS for one in (prompt, f"0: {prompt.split()[0]}")),
        "00000.png",
    ]
    # the text of a card ends above its lower edge
    room = shown.all(".card").evaluate_all(
        "all => all.map(c => c.getBoundingClientRect().bottom"
        " - c.querySelector('.foot').getBoundingClientRect().bottom)"
    )
    assert min(room) > 0
    shown.press("j", "z")
    playwright.expect(shown.all("#stage .figure")).to_have_count(1)
    assert shown.all("#details section").first.inner_text().count(PROMPTS[0]) == 1
    shown.press("Escape")
    shown.all("#search").fill("1: how")
    shown.says("1 image of 3")
    shown.all("#search").fill("")
    shown.says("3 images")
    if size is WIDE:
        assert shown.all("#field-file").is_hidden()
        shown.page.select_option("#prompt", index=2)
        assert shown.all(".card .answer").all_text_contents() == [f"{n}: how" for n in range(3)]
        shown.page.select_option("#prompt", index=0)
        shown.all("#group").click()
        shown.says("9 answers")
        assert shown.all(".card .row-prompt").first.inner_text() == PROMPTS[0]
        shown.all("#group").click()
        shown.says("3 images")


def test_boxes_of_several_prompts_are_shown_side_by_side(open_page, tmp_path):
    drawn(tmp_path, 2)
    prompts = ("detect cat", "detect dog")
    rows = [
        row(n, task="detect", prompt=prompt, boxes=[box(prompt[7:])] * n)
        for n in range(2)
        for prompt in prompts
    ]
    shown = open_page(gallery(tmp_path, rows), viewport={"width": 1600, "height": 700})
    playwright.expect(shown.all(".card").last.locator("img")).to_have_count(2)
    assert shown.all(".card").last.locator("svg.marks text").all_text_contents() == ["cat", "dog"]
    assert shown.all(".card .row-prompt").count() == 0
    shown.press("j", "ArrowRight", "z")
    first, second = (shown.all("#stage .figure").nth(index).bounding_box() for index in range(2))
    assert first["x"] < second["x"]
    assert first["y"] == second["y"]
    shown.page.set_viewport_size(PHONE)
    shown.page.wait_for_timeout(100)
    first, second = (shown.all("#stage .figure").nth(index).bounding_box() for index in range(2))
    assert first["y"] < second["y"]  # stacked, so that wide images are larger
    assert first["x"] == second["x"]


def hit(query: str, number: int, **more: Any) -> dict[str, Any]:
    name = f"{number:05}.png"
    return {"query": query, "rank": 1, "id": name, "image": name, "similarity": 0.9, **more}


def tops(shown: OpenPage, selector: str) -> list[float]:
    """The heights of elements on the page, each once, from above."""
    boxes = shown.all(selector).evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
    return sorted({round(top) for top in boxes})


def test_hits_are_below_their_query_and_a_switch_joins_them(open_page, tmp_path):
    drawn(tmp_path, 6)
    rows = [
        hit(query, n) for query, of in (("a red star", (0, 1)), ("a cat", (2, 3, 4))) for n in of
    ]
    shown = open_page(gallery(tmp_path, rows))
    shown.says("5 answers")
    assert shown.all("h2.section").all_text_contents() == ["a red star2", "a cat3"]
    (first, second), lines = tops(shown, "h2.section"), tops(shown, ".card")
    assert first < lines[0] < second < lines[1]
    assert len(lines) == 2
    assert shown.all(".card .row-prompt").count() == 0
    shown.press("j", "ArrowDown")  # to the first hit of the second query
    assert shown.all(".card.selected .id").inner_text() == "00002.png"
    shown.press("j", "ArrowUp")
    assert shown.all(".card.selected .id").inner_text() == "00001.png"
    shown.all("#search").fill("00003")
    playwright.expect(shown.all("h2.section")).to_have_text(["a cat1"])
    shown.all("#search").fill("")
    playwright.expect(shown.all("h2.section")).to_have_count(2)
    shown.all("#group").click()
    assert shown.all("h2.section").count() == 0
    assert len(tops(shown, ".card")) == 1
    assert shown.all(".card .row-prompt").first.inner_text() == "a red star"
    shown.all("#group").click()
    shown.page.select_option("#sort", label="Load time")
    assert shown.all("h2.section").count() == 0


def test_near_duplicates_are_in_groups_with_the_largest_first(open_page, tmp_path):
    drawn(tmp_path, 4)
    rows = [
        {"group": 1 + n // 2, "id": f"{n:05}.png", "image": f"{n:05}.png", "similarity": 1.0,
         "width": 40, "height": 30, "largest": n % 2 == 0}
        for n in range(4)
    ]  # fmt: skip
    shown = open_page(gallery(tmp_path, rows))
    assert shown.all("h2.section").all_text_contents() == ["group 12", "group 22"]
    assert shown.all(".card .row-prompt").all_text_contents() == [
        "largest, 40 \u00d7 30", "40 \u00d7 30"] * 2  # fmt: skip


def test_images_with_different_prompts_are_grouped_too(open_page, tmp_path):
    """As questions of a data set, of which no two are equal."""
    drawn(tmp_path, 3)
    rows = [
        row(n, id=f"{n} {k}", task="ask", prompt=f"question {n} {k}?", answer=f"{n} {k}")
        for n in range(3)
        for k in range(n + 1)
    ]
    shown = open_page(gallery(tmp_path, rows))
    shown.says("3 images")
    answers = [one.locator(".answer").all_text_contents() for one in shown.all(".card").all()]
    assert answers == [["0 0"], ["1 0", "1 1"], ["2 0", "2 1", "2 2"]]
    assert shown.all(".card .id").all_text_contents() == ["0 0", "00001.png", "00002.png"]


def saved_edits(shown: OpenPage) -> list[dict[str, Any]]:
    """The edits of the file that the page saves."""
    with shown.page.expect_download() as download:
        shown.press("s")
    saved_file = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert (saved_file["format"], saved_file["version"]) == ("pgcli edits", 1)
    return saved_file["edits"]


def applied(
    folder: Path, edits: list[dict[str, Any]], *options: str, rows: str = "rows.jsonl"
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the rows of `apply` with these edits."""
    file = saved(folder / "edits.json", [{"format": "pgcli edits", "version": 1, "edits": edits}])
    made = folder / "new.jsonl"
    code = main(["apply", str(file), str(folder / rows), "-o", str(made), *options])
    return code, read_rows(made) if made.exists() else []


def test_reviewed_rows_are_saved_and_survive_a_reload(open_page, page):
    shown = open_page(page)
    assert shown.all("#save").is_hidden()
    shown.press("j", "a", "r")
    shown.says("4 answers · 2 of 4 reviewed")
    shown.all(".card").nth(3).locator(".accepted").click()
    edits = saved_edits(shown)
    assert [(edit["index"], edit["id"], edit["state"]) for edit in edits] == [
        (0, "00000.png", "accepted"),
        (1, "00001.png", "rejected"),
        (3, "00003.png", "accepted"),
    ]
    assert [edit["digest"] for edit in edits] == [answer_digest(some()[n]) for n in (0, 1, 3)]
    assert edits[0].keys() == {"index", "id", "prompt", "digest", "state"}
    shown.press("u", "u")
    shown.says("4 answers · 1 of 4 reviewed")
    shown.page.reload()
    shown.says("4 answers · 1 of 4 reviewed")
    for name, ids in [("rejected", []), ("accepted", ["0"]), ("open", ["1", "2", "3"])]:
        shown.page.select_option("#review", name)
        assert [one[4] for one in shown.ids()] == ids
    shown.press("u")  # what came before the reload is not undone
    assert len(saved_edits(shown)) == 1


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
    edits = saved_edits(shown)
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
    (edit,) = saved_edits(shown)
    corners = [[box[name] for name in ("xmin", "ymin", "xmax", "ymax")] for box in edit["boxes"]]
    assert np.allclose(corners, [[32, 15, 90, 71], [120, 10, 150, 40]], atol=1.5)
    assert [(box["label"], box.get("source")) for box in edit["boxes"]] == [
        ("cat", 0),
        ("dog", None),
    ]
    code, (corrected,) = applied(tmp_path, [edit])
    assert (code, [box["label"] for box in corrected["boxes"]]) == (0, ["cat", "dog"])
    shown.page.reload()
    shown.press("j", "Enter", "n", "n", "x")
    assert shown.all("#details .edit-label").count() == 1
    shown.press("u")
    assert shown.all("#details .edit-label").count() == 2
    shown.press("d", "Enter", "Escape", "u", "u")
    assert shown.all("#details .edit-label").count() == 2


def test_edits_of_hostile_rows_are_of_their_rows(open_page, tmp_path):
    shown = open_page(gallery(tmp_path, hostile()))
    shown.press("j", *["a"] * len(HOSTILE))
    saved(tmp_path / "plain.jsonl", [row(n, answer="x") for n in range(2)])
    edits = saved_edits(shown)
    assert shown.page.evaluate("window.canary") is None
    assert applied(tmp_path, edits, rows="plain.jsonl") == (2, [])
    reviewable = shown.all("#status").inner_text().split(" of ")[-1]
    code, rows = applied(tmp_path, edits, "--rows", "accepted")
    assert (code, reviewable) == (0, f"{len(rows)} reviewed")


def test_edits_of_changed_answers_are_not_restored(open_page, page):
    shown = open_page(page)
    shown.press("j", "a", "a")
    shown.says("4 answers · 2 of 4 reviewed")
    rows = some()
    rows[1]["answer"] = "else"
    gallery(page.parent, rows)
    wait_until(lambda: shown.page.evaluate("localStorage.length"))
    shown.page.reload()
    shown.says("4 answers · 1 of 4 reviewed")
    shown.page.evaluate("Object.keys(localStorage).forEach(k => localStorage[k] = '[{\"edits\":1')")
    shown.page.reload()
    shown.says("4 answers")


@pytest.mark.slow
def test_page_of_an_evaluation_has_metrics(open_page, tmp_path):
    drawn(tmp_path, 2)
    true = [row(0, prompt="detect", boxes=[box("cat")]), row(1, prompt="detect", boxes=[])]
    sure = {**box("cat"), "confidence": 0.97}
    found = [
        {**true[0], "boxes": [sure, {**box("cat", 20, 20, 29, 29), "confidence": 0.42}]},
        {**true[1], "boxes": [sure]},
    ]
    truth, rows = saved(tmp_path / "truth.jsonl", true), saved(tmp_path / "rows.jsonl", found)
    words = ("--metric", "ap", "--images", str(tmp_path), "--view", str(tmp_path / "worst.html"))
    assert main(["eval", str(rows), str(truth), "--truth", str(truth), *words, "-q"]) == 0
    tall = {"width": 1280, "height": 2400}  # cards are below the tables
    shown = open_page(tmp_path / "worst.html", viewport=tall)
    tables = shown.all(".metrics")
    assert tables.locator("h2").all_text_contents() == [str(rows), str(truth), "Second minus first"]
    values = tables.nth(0).locator("tr", has=shown.page.get_by_text("f1@0.5", exact=True))
    assert values.locator("td").first.text_content() == "0.5000"
    nothing = tables.nth(0).locator("tr", has=shown.page.get_by_text("ap_large", exact=True))
    assert nothing.locator("td").all_text_contents()[:2] == ["\u2013", ""]  # without an interval


def test_each_answer_of_the_worst_rows_has_its_own_score(open_page, tmp_path):
    """The rows are in the order of the second file's scores."""
    drawn(tmp_path, 2)
    names = ("one.jsonl", "two.jsonl", "truth.jsonl")
    words = (("red", "red"), ("red", "blue"), ("red", "red"))
    files = [
        saved(
            tmp_path / name, [row(n, task="ask", prompt="?", answer=a) for n, a in enumerate(own)]
        )
        for name, own in zip(names, words, strict=True)
    ]
    one, two, truth = map(str, files)
    view = ("--images", str(tmp_path), "--view", str(tmp_path / "worst.html"))
    assert main(["eval", one, two, "--truth", truth, *view, "-q"]) == 0
    shown = open_page(tmp_path / "worst.html", viewport={"width": 1280, "height": 2400})
    assert shown.all("#sort option").first.inner_text() == f"Score of {two}"
    cards = shown.all(".card")
    assert cards.locator(".id").all_text_contents() == ["00001.png", "00000.png"]
    heads = [one.all_text_contents() for one in [card.locator(".row-head") for card in cards.all()]]
    assert heads == [["one.jsonl1", "two.jsonl0", "truth"], ["one.jsonl1", "two.jsonl1", "truth"]]


def test_page_of_labels_has_a_confusion_matrix(open_page, tmp_path):
    drawn(tmp_path, 5)
    answers = ("cat", "dog", "dog", "cow", None)
    rows = [row(n, task="ask", prompt="?", answer=text) for n, text in enumerate(answers[:4])]
    rows.append(failed(4) | {"task": "ask", "prompt": "?"})
    true = [row(n, prompt="?", answer=t) for n, t in enumerate(("cat", "cat", "dog", "dog", "dog"))]
    words = ("--images", str(tmp_path), "--view", str(tmp_path / "worst.html"))
    files = saved(tmp_path / "rows.jsonl", rows), saved(tmp_path / "truth.jsonl", true)
    assert main(["eval", str(files[0]), "--truth", str(files[1]), *words, "-q"]) == 0
    shown = open_page(tmp_path / "worst.html", viewport={"width": 1280, "height": 2400})
    matrix = shown.all(".confusion")
    assert matrix.locator("thead th").all_text_contents()[1:] == [
        "dog",
        "cat",
        "cow",
        "(no answer)",
    ]
    assert [
        line.locator("th, td").all_text_contents() for line in matrix.locator("tbody tr").all()
    ] == [
        ["dog", "1", "", "1", "1"],
        ["cat", "1", "1", "", ""],
    ]
    assert matrix.locator("td.right").all_text_contents() == ["1", "1"]


@pytest.mark.slow
def test_page_of_many_rows_has_few_cards_in_the_document(open_page, tmp_path):
    drawn(tmp_path, 50)
    rows = [row(n, image=f"{n % 50:05}.png") for n in range(3000)]
    shown = open_page(gallery(tmp_path, rows))
    shown.says("3,000 answers")
    shown.press("/")
    shown.page.keyboard.type("01777")
    shown.says("1 answer of 3,000")
    shown.press("Escape")
    shown.all("#search").fill("")
    shown.says("3,000 answers")
    shown.press("Escape", "j", "End")
    playwright.expect(shown.all(".card.selected .id")).to_have_text("02999.png")
    assert shown.all(".card").count() < 150
