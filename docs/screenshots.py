"""Makes the screenshots of the pages with Chromium: `python docs/screenshots.py`."""

from __future__ import annotations

import importlib.util
import json
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
REDRAWN = re.compile("[\u2801-\u28ff━]|\x1b\\[1A")  # spinners, bars and cursor movements
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


def recorded(command: str) -> str:
    """The command and its final output on a terminal."""
    outer, inner = pty.openpty()
    words = command.split()[1:]
    terminal = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    with subprocess.Popen(
        [sys.executable, "-m", "pgcli", *words],
        cwd=ROOT,
        env=os.environ | terminal,
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
    return f"\x1b[1m$ {command}\x1b[0m\n{final_lines(shown.decode())}\n"


def final_lines(shown: str) -> str:
    """The lines at the end of the output, without those that a progress bar replaced."""
    lines = []
    for line in shown.replace("\r\n", "\n").split("\n"):
        erased = line.rpartition("\x1b[2K")[2].rpartition("\r")[2]
        if erased.strip() or not lines or lines[-1]:
            lines.append(erased)
    return "\n".join(line for line in lines if not REDRAWN.search(line))


def terminal(file: Path, *commands: str) -> None:
    """Save an SVG of a terminal after these commands."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for command in commands:
        console.print(Text.from_ansi(recorded(command)))
    svg = console.export_svg(title="pgcli")
    # remove fonts that a viewer would download
    file.write_text(re.sub(r"@font-face {.*?}\n", "", svg, flags=re.S), encoding="utf-8")


def gallery(file: Path) -> None:
    """Save a screenshot of a page of boxes that the built-in model detects."""
    arguments = ["detect", "examples/images", "--object", "star", "--model", "demo"]
    with tempfile.TemporaryDirectory() as folder:
        rows, page = Path(folder) / "boxes.jsonl", Path(folder) / "boxes.html"
        pgcli(*arguments, "-o", str(rows))
        pgcli("view", str(rows), "-o", str(page))
        screenshot(page, file, width=1200, height=760)


#: Photographs of scikit-image (CC0 or in the public domain), with boxes that a person drew: label,
#: xmin, ymin, xmax, ymax in pixels.
PHOTOGRAPHS = {
    "chelsea.png": [("cat", 0, 0, 404, 300)],
    "coffee.png": [("cup", 173, 18, 409, 308), ("spoon", 326, 66, 424, 327)],
    "astronaut.png": [
        ("person", 23, 15, 362, 512),
        ("helmet", 279, 343, 510, 512),
        ("rocket", 353, 0, 456, 289),
    ],
    "rocket.jpg": [("rocket", 307, 127, 336, 408)],
}


def photographs(file: Path) -> None:
    """Save a screenshot of the page of photographs with boxes."""
    source = Path(importlib.util.find_spec("skimage").origin).parent / "data"
    with tempfile.TemporaryDirectory() as folder:
        rows, page = Path(folder) / "photographs.jsonl", Path(folder) / "photographs.html"
        with rows.open("w") as lines:
            for name, boxes in PHOTOGRAPHS.items():
                shutil.copy(source / name, folder)
                corners = ("label", "xmin", "ymin", "xmax", "ymax")
                row = {
                    "image": name,
                    "prompt": "detect",
                    "boxes": [dict(zip(corners, box, strict=True)) for box in boxes],
                }
                print(json.dumps(row), file=lines)
        made = Path(folder) / "truth.jsonl"
        pgcli("import", str(rows), "--from", "csv", "--images", folder, "-o", str(made))
        pgcli("view", str(made), "--images", folder, "-o", str(page))
        screenshot(page, file, width=1100, height=480)


def explanation(file: Path) -> None:
    """Save a screenshot of the page that explains a caption, with its second token selected."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "dusk.html"
        pgcli("explain", "demo", "examples/images/dusk.jpg", "-o", str(page))
        screenshot(page, file, width=1280, height=960, click="#answer button:nth-child(2)")


def pgcli(*arguments: str) -> None:
    """Run a command without messages."""
    subprocess.run([sys.executable, "-m", "pgcli", *arguments, "-q"], cwd=ROOT, check=True)


def screenshot(page: Path, file: Path, *, width: int, height: int, click: str = "") -> None:
    """Save what a browser of this size shows of a page, after a click on an element."""
    browser_path = next(path for name in BROWSERS if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.goto(page.as_uri())
        tab.wait_for_selector("img")
        if click:
            tab.click(click)
        tab.wait_for_timeout(500)
        tab.screenshot(path=str(file))
        browser.close()


if __name__ == "__main__":
    terminal(
        DOCS / "images" / "terminal.svg",
        "pgcli caption examples/images --model demo --limit 5",
        "pgcli detect examples/images/stars.jpg --object star --model demo",
    )
    gallery(DOCS / "images" / "gallery.png")
    photographs(DOCS / "images" / "photographs.jpg")
    explanation(DOCS / "images" / "explanation.png")
