"""Opens pages in Chromium: fixtures for the tests of pages."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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

    def __init__(self, browser: Any, file: Path, *, ready: str = ".card", **settings: Any):
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
        self.page.goto(file.as_uri())
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
