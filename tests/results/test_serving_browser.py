"""Tests the page of `pgcli view --serve` in a browser: a sitting, two tabs, and a lost server."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pgcli.cli.main import main
from tests.support.exporting import read_rows, saved
from tests.support.pages import BROWSERS, PHONE, OpenPage, box, drawn, row, sample_rows
from tests.support.runs import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
playwright.expect.set_options(timeout=15_000)  # the server shares the processors with other tests


class Desk:
    """A server of a result file, as its own process, and its pages in the browser."""

    def __init__(self, browser: Any, results: Path):
        self.browser, self.results = browser, results
        self.edits = results.with_name(f"{results.name}.edits.jsonl")
        self.pages: list[OpenPage] = []
        self.start()

    def start(self) -> None:
        words = [str(self.results), "--serve", "--no-open", "--images", str(self.results.parent)]
        run = [sys.executable, "-m", "pgcli", "view", *words, "--quiet"]
        self.process = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", self.url)

    def open(self, browser: Any = None, **settings: Any) -> OpenPage:
        self.pages.append(OpenPage(browser or self.browser, self.url, **settings))
        self.pages[-1].expect(self.pages[-1].all(".card img").first).to_be_visible()
        return self.pages[-1]

    def lines(self) -> list[dict[str, Any]]:
        """The complete lines of the file of edits."""
        return [json.loads(line) for line in self.edits.read_text().splitlines(keepends=True)]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def desk(browser, tmp_path) -> Iterator[Any]:
    """Serves files, and checks that their pages log nothing and ask nobody else."""
    desks: list[Desk] = []

    def serve(results: Path) -> Desk:
        desks.append(Desk(browser, results))
        return desks[-1]

    yield serve
    for each in desks:
        for page in each.pages:
            assert page.problems == []
            assert all(url.startswith(("data:", each.url[:17])) for url in page.requests)
            page.context.close()
        each.end()


def test_two_tabs_see_the_edits_of_each_other(desk, tmp_path):
    drawn(tmp_path, 5)
    served = desk(saved(tmp_path / "rows.jsonl", sample_rows()))
    first, second = served.open(), served.open(viewport=PHONE)
    first.press("j", "a", "r")
    first.says("4 answers · 2 of 4 reviewed")
    second.expect(second.all("#status")).to_have_text("4 answers · 2 of 4 reviewed", timeout=2000)
    second.expect(second.all(".card").nth(1).locator(".verdict .rejected")).to_have_attribute(
        "aria-pressed", "true"
    )
    second.all(".card").nth(3).locator(".verdict .accepted").click()
    first.expect(first.all("#status")).to_have_text("4 answers · 3 of 4 reviewed", timeout=2000)
    first.press("u")  # the last edit of all, which is the other page's
    first.says("4 answers · 2 of 4 reviewed")
    first.expect(first.all(".card.selected .id")).to_have_text("00003.png")
    first.all("#search").fill("blue")
    first.shows("00001.png")
    first.says("1 answer of 4 · 2 of 4 reviewed")
    first.all("#search").fill("")
    first.press("Escape")
    first.page.select_option("#review", "open")
    first.shows("00002.png", "00003.png")
    assert first.all("#save").is_hidden()


def test_verdict_that_a_lost_server_did_not_save_is_taken_back(desk, tmp_path):
    drawn(tmp_path, 5)
    served = desk(saved(tmp_path / "rows.jsonl", sample_rows()))
    shown = served.open()
    shown.press("j", "a")
    shown.says("4 answers · 1 of 4 reviewed")
    wait_until(lambda: len(served.lines()) == 1)
    served.end()
    shown.press("a")
    shown.expect(shown.all("#status")).to_contain_text("The server does not answer")
    shown.expect(shown.all("#status")).to_contain_text("1 of 4 reviewed")
    assert all("ERR_CONNECTION" in problem for problem in shown.problems)
    served.pages.clear()
    shown.context.close()


ROWS, VERDICTS, MOVED = 100_000, 195, 5


def many_rows() -> Iterator[dict[str, Any]]:
    for n in range(ROWS):
        boxes = [box("cat", 4, 3, 20, 15)] if n % 2 else []
        answer = "<loc0102><loc0102><loc0512><loc0512> cat" if n % 2 else f"drawing {n}"
        one = row(n, id=f"{n}.png", image=f"{n % 50:05}.png", answer=answer, boxes=boxes)
        yield one | {"task": "detect" if n % 2 else "caption"}


@pytest.mark.slow
def test_a_sitting_survives_the_browser_and_the_server(desk, tmp_path):
    """200 edits by keys and mouse; both are killed, and each edit is there once."""
    drawn(tmp_path, 50)
    results = saved(tmp_path / "rows.jsonl", many_rows())
    served, own = desk(results), {child.pid for child in psutil.Process().children(recursive=True)}
    executable = next(path for name in BROWSERS if (path := shutil.which(name)))
    browser = served.browser.browser_type.launch(executable_path=executable, args=["--no-sandbox"])
    shown = served.open(browser)
    shown.expect(shown.all("#status")).to_have_text("100,000 answers", timeout=60_000)
    expected = {}
    shown.press("j")
    for n in range(VERDICTS):
        shown.expect(shown.all(".card.selected .id")).to_have_text(f"{n}.png")
        card = shown.all(f'.card[data-index="{n}"]')
        expected[n] = "rejected" if n % 3 == 0 else "accepted"
        if n % 5 == 4:
            card.locator(f".{expected[n]}").click()
            shown.press("j")
        else:
            shown.press(expected[n][0])
    for place in range(MOVED):
        n = VERDICTS + 2 * place
        shown.expect(shown.all(".card.selected .id")).to_have_text(f"{n}.png")
        shown.press("z")
        shown.expect(shown.all("#stage svg.marks g")).to_have_count(1)
        shown.press("n", "ArrowRight", "ArrowDown") if place < 4 else shown.press("d", "Enter")
        shown.press(*["Escape"] * (2 if place < 4 else 3))
        shown.expect(shown.all("#zoom")).to_be_hidden()
        shown.press("j", "j")
    reviewed = f"{VERDICTS + MOVED} of 100,000 reviewed"
    shown.expect(shown.all("#status")).to_contain_text(f"{reviewed} · ")
    shown.expect(shown.all("#status")).to_contain_text("a minute · ")
    wait_until(
        lambda: {line["index"] for line in served.lines()} == {*range(195), 195, 197, 199, 201, 203}
    )
    assert shown.problems == []
    served.pages.clear()
    for process in psutil.Process().children(recursive=True):
        if process.pid not in own:
            process.send_signal(signal.SIGKILL)
    served.end()
    served.start()
    shown = served.open()
    shown.expect(shown.all("#status")).to_have_text(f"100,000 answers · {reviewed}", timeout=60_000)
    shown.page.select_option("#review", "corrected")
    shown.shows(*(f"{VERDICTS + 2 * place}.png" for place in range(MOVED)))
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(20) == -signal.SIGINT
    made = tmp_path / "new.jsonl"
    assert main(["apply", str(results), "-o", str(made), "--rows", "accepted", "-q"]) == 0
    rows = read_rows(made)
    wanted = [n for n, state in expected.items() if state == "accepted"]
    assert [one["index"] for one in rows] == [*wanted, *range(VERDICTS, VERDICTS + 2 * MOVED, 2)]
    moved, drawn_box = rows[-2]["boxes"], rows[-1]["boxes"]
    assert (len(moved), moved[0]["xmin"], moved[0]["ymin"]) == (1, 5, 4)
    assert [one["label"] for one in drawn_box] == ["cat", "cat"]
    coco = tmp_path / "boxes.json"
    words = ["export", str(made), "--to", "coco", "-o", str(coco), "--images", str(tmp_path)]
    assert main([*words, "-q"]) == 0
    boxes = json.loads(coco.read_text())["annotations"]
    assert len(boxes) == sum(len(one["boxes"]) for one in rows)
