"""Tests that anybody can use pages: on paper, with a finger, a keyboard or a screen reader."""

import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from pgcli.cli.main import main
from tests.support.exporting import saved
from tests.support.pages import PHONE, WIDE, box, drawn, gallery, row, sample_rows

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@pytest.mark.parametrize(("size", "least"), [(WIDE, 32), (PHONE, 44)], ids=["wide", "phone"])
def test_verdict_buttons_are_large_enough_for_a_finger(open_page, page, size, least):
    shown = open_page(page, viewport=size)
    for button in shown.all(".verdict button").all():
        sides = button.bounding_box()
        assert sides["width"] >= least
        assert sides["height"] >= least
    feet = "all => all.map(c => c.getBoundingClientRect().bottom"
    feet += " - c.querySelector('.foot').getBoundingClientRect().bottom)"
    assert min(shown.all(".card").evaluate_all(feet)) > 0


def test_clamped_answer_shows_whole_when_pointed_at_or_focused(open_page, tmp_path):
    drawn(tmp_path, 2)
    long = " ".join(f"word{n}" for n in range(60))
    shown = open_page(gallery(tmp_path, [row(0, answer=long), row(1, answer="short")]))
    answer = shown.all(".card .answer").first
    is_clamped = "e => e.scrollHeight > e.clientHeight + 1"
    assert answer.evaluate(is_clamped)
    answer.hover()
    assert not answer.evaluate(is_clamped)
    card, text = shown.all(".card").first.bounding_box(), shown.all(".text").first.bounding_box()
    assert text["y"] + text["height"] <= card["y"] + card["height"] + 1
    shown.page.mouse.move(0, 0)
    assert answer.evaluate(is_clamped)
    shown.press("j")
    assert not answer.evaluate(is_clamped)


def test_blank_answers_are_named_and_answers_are_copied(open_page, tmp_path):
    drawn(tmp_path, 3)
    rows = [row(0, answer="one"), row(1, answer=""), row(2, answer=" \u00a0 ")]
    shown = open_page(gallery(tmp_path, rows))
    assert shown.all(".card .answer").all_text_contents() == ["one", "(empty)", "(empty)"]
    shown.press("j", "z")
    shown.page.evaluate("""() => {
        navigator.clipboard.writeText = async (text) => { window.copied = text };
    }""")
    shown.all("#details .copy").click()
    shown.expect(shown.all("#details .copy")).to_have_text("Copied")
    assert shown.page.evaluate("window.copied") == "one"
    shown.press("ArrowRight")
    shown.expect(shown.all("#details .full-answer")).to_have_text("(empty)")


def test_accepting_a_corrected_row_selects_the_next(open_page, page):
    shown = open_page(page)
    shown.press("j", "c")
    shown.page.keyboard.type("a green cat")
    shown.press("Enter", "Escape", "a")
    shown.expect(shown.all(".card.selected .id")).to_have_text("00001.png")
    shown.says("4 answers \u00b7 1 of 4 reviewed")


def test_many_labels_wrap_or_scroll(open_page, tmp_path):
    drawn(tmp_path, 1)
    boxes = [box(f"label number {n}") for n in range(50)]
    shown = open_page(gallery(tmp_path, [row(0, boxes=boxes)]))
    labels = shown.all("#labels")
    assert labels.evaluate("e => e.scrollWidth <= e.clientWidth")
    tops = {round(chip.bounding_box()["y"]) for chip in shown.all(".chip").all()}
    assert len(tops) > 1
    labels.locator(".chip").last.focus()
    shown.expect(labels.locator(".chip").last).to_be_in_viewport()


def axe() -> str:
    """The source of axe-core, installed by `npm install axe-core` here or globally."""
    roots = [Path(__file__).parents[2] / "node_modules"]
    npm = ["npm", "root", "-g"]
    with suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(npm, capture_output=True, text=True, check=True, timeout=30)
        roots.append(Path(result.stdout.strip()))
    files = [root / "axe-core" / "axe.min.js" for root in roots]
    source = next((file for file in files if file.is_file()), None)
    return (
        source.read_text() if source else pytest.skip("axe-core is not installed: npm i axe-core")
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["answers", "questions", "hits", "evaluation", "explanation"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_axe_finds_no_violation(open_page, tmp_path, kind, scheme, size):
    source, page = axe(), page_of_kind(tmp_path, kind)
    ready = "#answer button" if kind == "explanation" else ".card"
    shown = open_page(
        page, ready=ready, bypass_csp=True, color_scheme=scheme, viewport=size,
        reduced_motion="reduce",
    )  # fmt: skip
    shown.page.add_script_tag(content=source)
    for keys in ((), ("j", "a", "j", "z"), ("z", "?")) if kind != "explanation" else ((),):
        shown.press(*keys)
        shown.page.wait_for_timeout(300)
        result = shown.page.evaluate("rules => axe.run(document, { runOnly: rules })", [*RULES])
        nodes = [
            (rule["id"], node["html"]) for rule in result["violations"] for node in rule["nodes"]
        ]
        assert nodes == [], keys
        assert len(result["passes"]) > 10


def page_of_kind(folder: Path, kind: str) -> Path:
    """A page of each kind that pgcli writes."""
    drawn(folder, 6)
    if kind == "explanation":
        page = folder / "page.html"
        image = Path(__file__).parents[2] / "examples" / "images" / "stars.jpg"
        assert main(["explain", "demo", str(image), "-o", str(page), "--quiet"]) == 0
        return page
    if kind == "evaluation":
        rows = [row(n, task="ask", prompt="?", answer="cat" if n % 2 else "dog") for n in range(6)]
        truth = [one | {"answer": "cat"} for one in rows]
        files = saved(folder / "rows.jsonl", rows), saved(folder / "truth.jsonl", truth)
        page = folder / "worst.html"
        words = ["--truth", str(files[1]), "--images", str(folder), "--view", str(page)]
        assert main(["eval", str(files[0]), *words, "-q"]) == 0
        return page
    if kind == "hits":
        hits = [
            {"query": f"query {n // 3}", "rank": 1, "similarity": 0.9}
            | {"id": f"{n:05}.png", "image": f"{n:05}.png"}
            for n in range(6)
        ]
        return gallery(folder, hits)
    if kind == "questions":
        rows = [row(n, task="ask", prompt=p, answer=p * n) for n in range(3) for p in ("a?", "b?")]
        return gallery(folder, rows)
    return gallery(folder, sample_rows())


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
