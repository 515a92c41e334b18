"""Pages of results: made of rows, parsed, and in a browser."""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode
from collections.abc import Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.rle import encode_mask_parts
from pgcli.rows import BOX_NUMBERS
from tests.support import exporting

CANARY = "window.canary=1"
#: Foreign text that attacks a page; it is shown as text.
HOSTILE = (
    f"<img src=x onerror={CANARY}>",
    f"</script><script>{CANARY}</script>",
    f"--></title><svg onload={CANARY}>",
    f"<!--<script>{CANARY}",
    f"javascript:{CANARY}",
    f'" onclick="{CANARY}" x="',
    f"${{{CANARY}}}`;{CANARY};//",
    "[bold]not bold[/bold]",
    "http://example.com/a.png",
    "//example.com/a.png",
    "name\u202egnp.exe",
    "one\nline and\r\nanother\x1b[2J",
    "\ud800 half",
    "'; drop $title $script",
)


def row(index: int = 0, **changes: Any) -> dict[str, Any]:
    """A row as `caption` writes it, with changes."""
    name = f"{index:05}.png"
    known = {"id": name, "image": name, "width": 40, "height": 30, "task": "caption"}
    known |= {"prompt": "caption en", "answer": "an image"}
    return exporting.row(index, **known) | changes


def box(label: str, *corners: float, score: float = 0.5) -> dict[str, Any]:
    xmin, ymin, xmax, ymax = corners or (4, 3, 20, 15)
    numbers = (xmin, ymin, xmax, ymax, score, score)
    return {"label": label, **dict(zip(BOX_NUMBERS, numbers, strict=True))}


def failed(index: int, error: str = "truncated", message: str = "It ends early.") -> dict[str, Any]:
    nothing = dict.fromkeys(("answer", "tokens", "finish", "logprob", "batch"))
    nothing |= dict.fromkeys(("vision_ms", "prefill_ms", "decode_ms"))
    return row(index, error=error, error_message=message, **nothing)


def hostile() -> list[dict[str, Any]]:
    """Rows with hostile text in every text field, including column names."""
    rows = []
    for number, text in enumerate(HOSTILE):
        words = {"id": text, "image": text, "prompt": text, "model": text, text: text}
        found = [box(text), {"label": text, "xmin": text}, text]
        rows.append(row(2 * number, answer=text, boxes=found, task=text, finish=text, **words))
        rows.append(failed(2 * number + 1, text, text) | words)
    rows[0]["choices"] = [{"text": text, "logprob": text, "probability": text} for text in HOSTILE]
    return rows


def drawn(folder: Path, count: int, size: tuple[int, int] = (40, 30)) -> None:
    """Single-coloured images with the names in the rows."""
    for number in range(count):
        colour = (number * 37 % 256, number * 91 % 256, 160)
        Image.new("RGB", size, colour).save(folder / f"{number:05}.png")


def gallery(folder: Path, rows: list[dict[str, Any]], *options: str) -> Path:
    """The page of these rows, whose images are in the folder."""
    file = exporting.saved(folder / "rows.jsonl", rows)
    page = folder / "gallery.html"
    arguments = ["view", str(file), "-o", str(page), "--images", str(folder), *options]
    assert main([*arguments, "--quiet", "--overwrite"]) == 0
    return page


def sample_rows() -> list[dict[str, Any]]:
    """Four answers, of which two have boxes and one a mask, and two errors."""
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


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; tests are skipped without it or without Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip("Chromium is not installed: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as running:
        # the sandbox does not start as root, which containers use
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = running.chromium.launch(executable_path=executable, args=options)
        yield opened
        opened.close()


class OpenPage:
    """A page in the browser, with its errors and its requests."""

    def __init__(self, browser: Any, file: Path | str, *, ready: str = ".card", **settings: Any):
        from playwright.sync_api import expect

        self.expect = expect
        self.context = browser.new_context(**({"viewport": WIDE} | settings))
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        self.page.on("console", self._note)
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file if isinstance(file, str) else file.as_uri())
        expect(self.all(ready).first).to_be_visible()

    def _note(self, message: Any) -> None:
        if message.type != "info":  # such as that a key was faster than the focus of a new window
            self.problems.append(message.text)

    def all(self, selector: str) -> Any:
        return self.page.locator(selector)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def says(self, text: str) -> None:
        self.expect(self.all("#status")).to_have_text(text)

    def shows(self, *ids: str) -> None:
        self.expect(self.all(".card .id")).to_have_text(list(ids))

    def saved_edits(self) -> list[dict[str, Any]]:
        """The edits of the file that the page saves; none where it has nothing to save."""
        if not (self.all("#save").is_visible() and self.all("#save").is_enabled()):
            return []
        with self.page.expect_download() as download:
            self.press("s")
        file = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
        assert (file["format"], file["version"]) == ("pgcli edits", 1)
        return file["edits"]

    def verdicts(self) -> list[tuple[int, str]]:
        """The index of each reviewed row, and its verdict."""
        return [(edit["index"], edit["state"]) for edit in self.saved_edits()]

    def ids(self) -> list[str]:
        """The ids of the cards in the document, in display order."""
        cards = self.all(".card").evaluate_all(
            "all => all.map(c => [+c.dataset.index, c.querySelector('.id').textContent])"
        )
        return [name for _, name in sorted(cards)]


@pytest.fixture
def open_page(browser) -> Iterator[Any]:
    """Opens pages, and checks that none logs anything or sends a request."""
    opened: list[OpenPage] = []

    def show(file: Path, **settings: Any) -> OpenPage:
        opened.append(OpenPage(browser, file, **settings))
        return opened[-1]

    yield show
    for shown in opened:
        assert shown.problems == []
        assert [
            url for url in shown.requests if not url.startswith(("file:", "data:", "blob:"))
        ] == []
        shown.context.close()


class Parsed(HTMLParser):
    """A page as a browser parses it: tags with their attribute names, and texts."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.is_within = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.attributes.append(dict(attrs))
        self.texts.append("")
        self.is_within = True

    def handle_endtag(self, tag: str) -> None:
        self.is_within = False

    def handle_data(self, data: str) -> None:
        if self.is_within:
            self.texts[-1] += data

    def named(self, name: str) -> Any:
        """The JSON of the script with that name."""
        return next(
            json.loads(text)
            for text, attributes in zip(self.texts, self.attributes, strict=True)
            if attributes.get("id") == name
        )


def content(file: Path) -> Parsed:
    return Parsed(file.read_text(encoding="utf-8"))


def copy(parsed: Parsed, number: int) -> Image.Image:
    entry = parsed.named(f"image-{number}")
    return Image.open(BytesIO(b64decode(entry[0])))
