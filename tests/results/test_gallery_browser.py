"""Tests the page of `pgcli view` in a browser: opening, search, filters and keys."""

import re
from typing import Any

import numpy as np
import pytest

from pgcli.cli.main import main
from pgcli.rle import encode_mask_parts
from tests.support.exporting import saved
from tests.support.pages import (
    CANARY,
    HOSTILE,
    PHONE,
    WIDE,
    OpenPage,
    box,
    drawn,
    failed,
    gallery,
    hostile,
    row,
)

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")


def test_page_opens_from_a_file_with_its_images(open_page, page):
    shown = open_page(page)
    assert shown.ids() == ["00000.png", "00001.png", "00002.png", "00003.png"]
    shown.says("4 answers")
    playwright.expect(shown.all(".card img:not(.loading)")).to_have_count(4)
    sizes = shown.all(".card img").evaluate_all("all => all.map(i => i.naturalWidth)")
    assert sizes == [40] * 4
    assert shown.all(".card img").nth(2).get_attribute("alt") == "1 cat, 1 dog"
    assert shown.all(".card img").nth(0).get_attribute("alt") == "a red cat"
    assert all(url.startswith(("file:", "data:")) for url in shown.requests)


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
            **dict.fromkeys(("model", "truncated", "error", "error_message")),
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
    assert shown.page.evaluate("document.activeElement.querySelector('img').alt") == "a blue dog"
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
    playwright.expect(shown.all("#panel")).to_contain_text("vision 10 ms")


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
    assert shown.all("h2.section").all_text_contents() == ["a red star2 images", "a cat3 images"]
    (first, second), lines = tops(shown, "h2.section"), tops(shown, ".card")
    assert first < lines[0] < second < lines[1]
    assert len(lines) == 2
    assert shown.all(".card .row-prompt").count() == 0
    shown.press("j", "ArrowDown")  # to the first hit of the second query
    assert shown.all(".card.selected .id").inner_text() == "00002.png"
    shown.press("j", "ArrowUp")
    assert shown.all(".card.selected .id").inner_text() == "00001.png"
    shown.all("#search").fill("00003")
    playwright.expect(shown.all("h2.section")).to_have_text(["a cat1 image"])
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
    assert shown.all("h2.section").all_text_contents() == ["group 12 images", "group 22 images"]
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
