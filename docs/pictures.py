"""The pictures of the pages, made anew by `python docs/pictures.py`, with Chromium here."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
ROOT = DOCS.parent
COLUMNS, LINES = 100, 40
DRAWN_OVER = re.compile("[\u2801-\u28ff━]|\x1b\\[1A")  # spinners, bars, and what goes back up
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


def typed(command: str) -> str:
    """What a terminal shows of a command, the command included, its bar at its end."""
    outer, inner = pty.openpty()
    words = command.split()[1:]
    known = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    with subprocess.Popen(
        [sys.executable, "-m", "pgcli", *words],
        cwd=ROOT,
        env=os.environ | known,
        stdin=subprocess.DEVNULL,
        stdout=inner,
        stderr=inner,
    ):
        os.close(inner)
        shown = b""
        while True:
            try:
                shown += os.read(outer, 65536)
            except OSError:
                break
    os.close(outer)
    return f"\x1b[1m$ {command}\x1b[0m\n{at_its_end(shown.decode())}\n"


def at_its_end(shown: str) -> str:
    """The lines as they stand when all is written: those that a bar drew over are gone."""
    lines = []
    for line in shown.replace("\r\n", "\n").split("\n"):
        erased = line.rpartition("\x1b[2K")[2].rpartition("\r")[2]
        if erased.strip() or not lines or lines[-1]:
            lines.append(erased)
    return "\n".join(line for line in lines if not DRAWN_OVER.search(line))


def terminal(file: Path, *commands: str) -> None:
    """Save a picture of a terminal after these commands."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for command in commands:
        console.print(Text.from_ansi(typed(command)))
    picture = console.export_svg(title="pgcli")
    # fonts from a network would be asked for by whoever looks at it
    file.write_text(re.sub(r"@font-face {.*?}\n", "", picture, flags=re.S), encoding="utf-8")


def gallery(file: Path) -> None:
    """Save a picture of the page of what the built-in model finds in its drawings."""
    browser_path = next(found for name in BROWSERS if (found := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder:
        rows, page = Path(folder) / "boxes.jsonl", Path(folder) / "boxes.html"
        asked = ["detect", "examples/images", "--object", "star", "--model", "demo", "-q"]
        command = [sys.executable, "-m", "pgcli", *asked, "-o", str(rows), "--view", str(page)]
        subprocess.run(command, cwd=ROOT, check=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=browser_path, args=["--no-sandbox"]
            )
            tab = browser.new_page(viewport={"width": 1200, "height": 760})
            tab.goto(page.as_uri())
            tab.wait_for_selector("img")
            tab.wait_for_timeout(500)
            tab.screenshot(path=str(file))
            browser.close()


if __name__ == "__main__":
    terminal(
        DOCS / "terminal.svg",
        "pgcli caption examples/images --model demo --limit 5",
        "pgcli detect examples/images/stars.jpg --object star --model demo",
    )
    gallery(DOCS / "gallery.png")
