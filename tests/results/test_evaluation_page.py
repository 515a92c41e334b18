"""Tests the page of `pgcli eval --view` in a browser."""

import pytest

from pgcli.cli.main import main
from tests.support.exporting import saved
from tests.support.pages import box, drawn, row

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")


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
    assert tables.locator("h2").all_text_contents() == [
        "rows.jsonl",
        "truth.jsonl",
        "Second minus first",
    ]
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
    assert shown.all("#sort option").first.inner_text() == "Score of two.jsonl"
    cards = shown.all(".card")
    assert cards.locator(".id").all_text_contents() == ["00001.png", "00000.png"]
    heads = [one.all_text_contents() for one in [card.locator(".row-head") for card in cards.all()]]
    assert heads == [["one.jsonl1", "two.jsonl0", "truth"], ["one.jsonl1", "two.jsonl1", "truth"]]


def test_right_and_wrong_rows_differ_in_shape_and_colour(open_page, tmp_path):
    drawn(tmp_path, 2)
    rows = [row(n, task="detect", prompt="?", boxes=[box("cat")]) for n in range(2)]
    rows[1]["boxes"] = [box("cat", 20, 15, 39, 29)]
    true = [row(n, prompt="?", boxes=[box("cat")]) for n in range(2)]
    files = saved(tmp_path / "rows.jsonl", rows), saved(tmp_path / "truth.jsonl", true)
    words = ("--metric", "ap", "--images", str(tmp_path), "--view", str(tmp_path / "worst.html"))
    assert main(["eval", str(files[0]), "--truth", str(files[1]), *words, "-q"]) == 0
    shown = open_page(tmp_path / "worst.html", viewport={"width": 1280, "height": 2400})
    look = """e => [e.textContent, getComputedStyle(e, "::before").content[1],
        getComputedStyle(e).color]"""
    (wrong, cross, red), (right, tick, green) = shown.all(".card .value").evaluate_all(
        f"all => all.map({look})"
    )
    assert (wrong, cross, right, tick) == ("0", "\u2715", "1", "\u2713")
    assert red != green
