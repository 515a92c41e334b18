"""Tests that keys judge the card that a person looks at, with wheel, mouse, keyboard and touch."""

from pathlib import Path

import pytest

from tests.support.pages import PHONE, OpenPage, box, drawn, failed, gallery, row
from tests.support.runs import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

ROWS = 60


def numbered_rows() -> list[dict]:
    """Rows of captions and boxes, sorted in reverse by their log-probability, and an error."""
    rows = [row(n, answer=f"answer {n}", logprob=-n / 100) for n in range(ROWS)]
    for n in range(0, ROWS, 2):
        rows[n] |= {"task": "detect", "answer": "<loc0001>", "boxes": [box("cat")]}
    return [*rows, failed(ROWS)]


@pytest.fixture
def many(tmp_path) -> Path:
    drawn(tmp_path, ROWS)
    return gallery(tmp_path, numbered_rows())


def wheel(shown: OpenPage, pixels: int) -> None:
    """Turn the wheel over the cards, and wait until the page has scrolled."""
    target = shown.page.evaluate("scrollY") + pixels
    shown.page.mouse.move(600, 500)
    shown.page.mouse.wheel(0, pixels)
    wait_until(lambda: abs(shown.page.evaluate("scrollY") - target) < 2)


def card(shown: OpenPage, index: int):
    return shown.all(f'.card[data-index="{index}"]')


def selected(shown: OpenPage) -> int | None:
    """The index of the selected card, which is wholly below the bars; None without one."""
    chosen = shown.all(".card.selected")
    if not chosen.count():
        return None
    sides = chosen.bounding_box()
    bar = shown.all("#top").bounding_box()
    assert sides["y"] >= bar["y"] + bar["height"]
    assert sides["y"] + sides["height"] <= shown.page.viewport_size["height"]
    return int(chosen.get_attribute("data-index"))


@pytest.mark.parametrize("key", ["a", "r"])
def test_key_on_a_scrolled_fresh_page_only_selects_the_first_visible_card(open_page, many, key):
    shown = open_page(many)
    wheel(shown, 2000)
    shown.press(key)
    chosen = selected(shown)
    assert chosen is not None
    assert chosen > 10
    assert shown.verdicts() == []
    above = card(shown, chosen - 1)  # the card before it is the last one of the line above
    middle = above.bounding_box()["y"] + above.bounding_box()["height"] / 2
    assert middle < shown.all("#top").bounding_box()["height"]
    shown.press(key)
    assert shown.verdicts() == [(chosen, {"a": "accepted", "r": "rejected"}[key])]
    assert selected(shown) == chosen + 1


def test_keys_judge_the_card_whose_button_was_clicked(open_page, many):
    shown = open_page(many)
    card(shown, 7).locator(".accepted").click()
    assert selected(shown) == 7
    shown.press("r")
    assert shown.verdicts() == [(7, "rejected")]
    card(shown, 3).locator(".text").click(position={"x": 5, "y": 5})
    shown.press("a")
    assert shown.verdicts() == [(3, "accepted"), (7, "rejected")]
    assert selected(shown) == 4


def test_card_that_was_scrolled_away_is_not_judged(open_page, many):
    shown = open_page(many)
    card(shown, 2).locator(".accepted").click()
    for pixels in (350, 1500):  # still in the document, and removed from it
        wheel(shown, pixels)
        shown.press("r")
        assert shown.verdicts() == [(2, "accepted")]
        assert selected(shown) not in (None, 2)
        shown.page.evaluate("window.scrollTo(0, 0)")
        shown.expect(card(shown, 2)).to_be_in_viewport()
        card(shown, 2).locator(".text").click(position={"x": 5, "y": 5})
    wheel(shown, 60)  # most of it is still visible
    shown.press("r")
    assert shown.verdicts() == [(2, "rejected")]


def test_touched_card_is_judged_by_the_next_key(open_page, many):
    shown = open_page(many, has_touch=True, viewport=PHONE)
    card(shown, 1).locator(".rejected").tap()
    shown.press("a")
    assert shown.verdicts() == [(1, "accepted")]
    card(shown, 4).locator(".frame").tap()
    shown.expect(shown.all("#position")).to_have_text("5 of 60")
    shown.all("#close").tap()
    shown.press("r")
    assert shown.verdicts() == [(1, "accepted"), (4, "rejected")]
    shown.page.evaluate("window.scrollTo(0, 3000)")
    shown.expect(card(shown, 4)).to_have_count(0)
    shown.press("a")
    assert len(shown.verdicts()) == 2
    assert selected(shown) > 8


def test_focused_card_is_judged(open_page, many):
    shown = open_page(many)
    shown.all(".chip").last.focus()
    shown.press("Tab", "Tab", "a")  # past the button that copies ids
    assert shown.verdicts() == [(0, "accepted")]
    card(shown, 6).locator(".accepted").focus()
    shown.press("r")
    assert shown.verdicts() == [(0, "accepted"), (6, "rejected")]
    card(shown, 9).locator(".rejected").focus()
    shown.press("Enter", "a")
    assert shown.verdicts() == [(0, "accepted"), (6, "rejected"), (9, "accepted")]


@pytest.mark.parametrize(
    "change", ["search", "sort", "direction", "label", "review", "errors", "confidence"]
)
def test_card_of_another_order_or_filter_is_not_judged(open_page, many, change):
    shown = open_page(many)
    card(shown, 3).locator(".accepted").click()
    page = shown.page
    match change:
        case "search":
            shown.press("/")
            page.keyboard.type("answer 1")
            shown.press("Enter")
        case "sort":
            page.select_option("#sort", "logprob")
        case "direction":
            shown.all("#direction").click()
        case "label":
            shown.all(".chip").click()
        case "review":
            page.select_option("#review", "open")
        case "errors":
            shown.press("e", "e")
        case "confidence":
            shown.all("#confidence").fill("0.1")
    page.evaluate("document.activeElement.blur()")
    shown.press("r")
    assert shown.verdicts() == [(3, "accepted")]


def test_keys_judge_the_open_image_and_then_the_one_shown_last(open_page, many):
    shown = open_page(many)
    card(shown, 1).locator(".frame").click()
    shown.press("ArrowRight", "r")
    shown.expect(shown.all("#position")).to_have_text("4 of 60")
    shown.page.mouse.move(300, 400)
    shown.page.mouse.wheel(0, 300)  # enlarges, and scrolls nothing
    shown.all("#after").click()
    shown.press("Escape")
    shown.expect(shown.all("#zoom")).to_be_hidden()
    assert selected(shown) == 4
    shown.press("a")
    assert shown.verdicts() == [(2, "rejected"), (4, "accepted")]


def test_undo_shows_the_card_that_it_changes(open_page, many):
    shown = open_page(many)
    card(shown, 2).locator(".accepted").click()
    wheel(shown, 2000)
    shown.press("u")
    assert shown.verdicts() == []
    assert selected(shown) == 2
    shown.press("r", "z", "u")
    shown.expect(shown.all("#position")).to_have_text("3 of 60")
    shown.press("Escape")
    card(shown, 2).locator(".accepted").click()
    wheel(shown, 1000)
    shown.all("#undo").click()
    assert selected(shown) == 2
    assert shown.verdicts() == []


def test_key_that_is_held_down_judges_one_card(open_page, many):
    shown = open_page(many)
    shown.press("j")
    for _ in range(3):
        shown.page.keyboard.down("a")
    shown.page.keyboard.up("a")
    assert shown.verdicts() == [(0, "accepted")]


def test_other_keys_act_on_the_same_card(open_page, many):
    shown = open_page(many)
    for line, key in enumerate(["c", "ArrowDown", "k"], start=1):
        wheel(shown, 700)
        shown.press(key)
        chosen = selected(shown)
        assert chosen > 5 * line
        assert shown.all("#zoom").is_hidden()
    for key in ("c", "z", "Enter"):
        shown.press(key)
        shown.expect(shown.all("#position")).to_have_text(f"{chosen + 1} of 60")
        shown.press("Escape", "Escape")
    wheel(shown, -1200)
    shown.press("z")  # opens the first visible card, which is no verdict
    first = int(shown.all("#position").inner_text().split()[0])
    assert first < chosen - 4
    shown.press("Escape")
    assert selected(shown) == first - 1
    assert shown.verdicts() == []
