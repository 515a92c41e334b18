"""Tests the labels of boxes on a page: on cards, in the filters, and over the images."""

import numpy as np
import pytest

from tests.support.pages import PHONE, WIDE, OpenPage, box, drawn, gallery, row, sample_rows

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

WORDS = ("triangle", "hexagon", "star", "a label that is longer than a card is wide", "circle")


def visible_labels(shown: OpenPage, card: int) -> list[str]:
    """The visible labels of a card; none is cut off by the end of its line or its card."""
    tags = shown.all(f'.card[data-index="{card}"] .tag:visible')
    line = shown.all(f'.card[data-index="{card}"] .tags').bounding_box()
    for tag in tags.all():
        sides = tag.bounding_box()
        assert sides["x"] + sides["width"] <= line["x"] + line["width"] + 0.5
        assert sides["y"] + sides["height"] <= line["y"] + line["height"] + 1
    return tags.all_inner_texts()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_labels_without_room_are_counted_and_shown_on_hover(open_page, tmp_path, size):
    drawn(tmp_path, 5)
    rows = [
        row(0, boxes=[box("triangle")] * 3 + [box("hexagon"), box("star")]),
        row(1, boxes=[box(word) for word in WORDS] * 2),
        row(2, boxes=[box("cat")]),
        row(3, boxes=[box(WORDS[3])]),
        row(4, boxes=[box(f"thing {n}") for n in range(150)]),
    ]
    shown = open_page(gallery(tmp_path, rows), viewport=size)
    for index, each in enumerate(rows):
        total = len({found["label"] for found in each["boxes"]})
        labels = visible_labels(shown, index)
        card = shown.all(f'.card[data-index="{index}"]')
        more = card.locator(".more")
        assert labels
        assert more.all_inner_texts() == (
            [f"+{total - len(labels)}"] if total > len(labels) else []
        )
        card.locator(".text").hover()
        if total < 100:
            assert len(visible_labels(shown, index)) == total
            assert card.locator(".more:visible").count() == 0
        shown.page.mouse.move(0, 0)
        assert visible_labels(shown, index) == labels
    assert visible_labels(shown, 2) == ["cat"]
    shown.press("j", "z")
    texts = [each.input_value() for each in shown.all("#details .edit-label").all()]
    assert texts == ["triangle"] * 3 + ["hexagon", "star"]


def chips(shown: OpenPage) -> dict[str, int]:
    """The labels of the filters with their numbers."""
    pairs = (chip.split("\n") for chip in shown.all(".chip").all_inner_texts())
    return {label: int(number) for label, number in pairs}


def test_filters_count_corrected_labels(open_page, tmp_path):
    drawn(tmp_path, 5)
    shown = open_page(gallery(tmp_path, sample_rows()))
    assert chips(shown) == {"cat": 2, "dog": 1}
    shown.press("j", "j", "j", "z")
    shown.expect(shown.all("#details .edit-label")).to_have_count(2)
    shown.press("c")
    shown.page.keyboard.type("dog")
    shown.press("Enter")
    assert chips(shown) == {"cat": 1, "dog": 1}
    shown.press("Escape", "ArrowRight", "c")
    shown.page.keyboard.type("owl")
    shown.press("Enter", "d", "Enter", "Escape", "Escape", "Escape")  # draws a second owl
    corrected = {"cat": 0, "dog": 1, "owl": 1}
    assert chips(shown) == corrected
    shown.all(".chip").filter(has_text="dog").click()
    assert shown.ids() == ["00002.png"]
    shown.all(".chip").filter(has_text="dog").click()
    rejected = shown.all('.card[data-index="2"] .rejected')
    rejected.click()
    assert chips(shown) == corrected
    shown.press("u")
    assert chips(shown) == corrected


def test_key_and_buttons_hide_labels_and_leave_boxes(open_page, page):
    shown = open_page(page)
    labels = shown.all('.card[data-index="2"] svg.marks text').first
    frame = shown.all('.card[data-index="2"] svg.marks rect[fill=none]').first
    toggle = shown.all("#plates")
    for hide in (lambda: shown.press("l"), toggle.click):
        assert toggle.get_attribute("aria-pressed") == "true"
        hide()
        shown.expect(labels).to_be_hidden()
        shown.expect(frame).to_be_visible()
        assert toggle.get_attribute("aria-pressed") == "false"
        assert shown.all(".card .tag").first.is_visible()
        hide()
        shown.expect(labels).to_be_visible()
    shown.press("j", "j", "j", "z")
    shown.all("#zoom-plates").click()
    shown.expect(shown.all("#stage svg.marks text").first).to_be_hidden()
    shown.expect(shown.all("#stage svg.marks rect[fill=none]").first).to_be_visible()
    shown.press("Escape")
    shown.expect(labels).to_be_hidden()
    shown.press("b", "l")
    shown.expect(labels).to_be_hidden()
    shown.press("?")
    shown.expect(shown.all("#panel")).to_contain_text("show or hide the labels of boxes")


COVERED = """all => all.flatMap((drawing) => {
    const rects = (selector) => [...drawing.querySelectorAll(selector)].map((e) => e.getBBox());
    const unit = 1 / drawing.getScreenCTM().a;
    const small = rects("rect[fill=none]").filter((b) => Math.min(b.width, b.height) < 40 * unit);
    return rects("rect.plate").filter((p) => small.some((b) =>
        Math.min(p.x + p.width, b.x + b.width) - Math.max(p.x, b.x) > 0.5 * unit
        && Math.min(p.y + p.height, b.y + b.height) - Math.max(p.y, b.y) > 0.5 * unit));
}).length"""


@pytest.mark.parametrize("medium", ["wide", "phone", "paper"])
def test_labels_cover_no_small_box(open_page, tmp_path, medium):
    """Boxes of 2 to 60 pixels of the images, and one that has no room for a label."""
    drawn(tmp_path, 6, size=(320, 240))
    generator = np.random.default_rng(60)
    rows = []
    for n in range(6):
        corners = generator.uniform(0, 1, (8, 4)) * [260, 180, 58, 58] + [0, 0, 2, 2]
        boxes = [box(WORDS[k % 5], x, y, x + w, y + h) for k, (x, y, w, h) in enumerate(corners)]
        rows.append(row(n, width=320, height=240, boxes=boxes))
    rows[0]["boxes"] = [box("pair", 100, 0, 104, 200), box("of", 100, 200, 104, 240)]
    shown = open_page(gallery(tmp_path, rows), viewport=PHONE if medium == "phone" else WIDE)
    if medium == "paper":
        shown.page.emulate_media(media="print")
        shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    drawings = shown.all(".card svg.marks")
    shown.expect(drawings).to_have_count(6)
    assert drawings.evaluate_all(COVERED) == 0
    assert shown.all("rect.plate").count() > 8


def test_paper_shows_every_label(open_page, tmp_path):
    drawn(tmp_path, 1)
    rows = [row(0, boxes=[box(word) for word in WORDS])]
    shown = open_page(gallery(tmp_path, rows))
    assert shown.all(".more").count() == 1
    shown.page.emulate_media(media="print")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert sorted(visible_labels(shown, 0)) == sorted(WORDS)
    assert shown.all(".more:visible").count() == 0
