"""Tests pages as a browser prints them."""

import re

import pytest

from tests.support.galleries import box, drawn, gallery, row

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

PRINTED = """() => new Promise((resolve) => window.addEventListener("beforeprint", () => resolve({
    ids: [...document.querySelectorAll(".card .id")].map((id) => id.textContent),
    text: document.getElementById("cards").textContent })))"""


@pytest.mark.parametrize("number", [1, 42, pytest.param(644, marks=pytest.mark.slow)])
def test_every_row_and_its_image_are_printed(open_page, tmp_path, number):
    """The images have 256 colours; the PDF has equal images once."""
    drawn(tmp_path, number)
    long = " ".join(f"word{n}" for n in range(20))
    rows = [row(n, answer=long, boxes=[box("cat")] if n % 2 else None) for n in range(number)]
    shown = open_page(gallery(tmp_path, rows))
    shown.page.evaluate(f"() => {{ window.printed = ({PRINTED})(); }}")  # not awaited
    pdf = shown.page.pdf(prefer_css_page_size=True)
    printed = shown.page.evaluate("window.printed")
    assert printed["ids"] == [f"{n:05}.png" for n in range(number)]
    assert len(re.findall(rb"/Subtype /Image", pdf)) == min(number, 256)
    assert len(re.findall(rb"/Type /Page\b", pdf)) <= number / 6 + 1
    shown.says(f"{number} answer{'s' * (number > 1)}")
    assert shown.all(".card").count() < 70  # those near the screen, as before


def test_paper_shows_whole_answers_and_no_controls(open_page, tmp_path):
    drawn(tmp_path, 3)
    long = " ".join(f"word{n}" for n in range(80))
    shown = open_page(gallery(tmp_path, [row(n, answer=long) for n in range(3)]))
    shown.page.emulate_media(media="print")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    answer = shown.all(".card .answer").first
    assert answer.evaluate("e => e.scrollHeight <= e.clientHeight")
    card, inside = shown.all(".card").first.bounding_box(), answer.bounding_box()
    assert inside["y"] + inside["height"] < card["y"] + card["height"]
    for selector in ("#search", "#save", "#filters", ".card .verdict"):
        assert shown.all(selector).first.is_hidden(), selector
    assert shown.all("#title").is_visible()
