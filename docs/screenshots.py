"""Makes the screenshots of the pages with Chromium: `python docs/screenshots.py`."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


def gallery(file: Path) -> None:
    """Save a screenshot of a page of boxes that the built-in model detects."""
    arguments = ["detect", "examples/images", "--object", "star", "--model", "demo"]
    with tempfile.TemporaryDirectory() as folder:
        rows, page = Path(folder) / "boxes.jsonl", Path(folder) / "boxes.html"
        pgcli(*arguments, "-o", str(rows))
        pgcli("view", str(rows), "-o", str(page))
        screenshot(page.as_uri(), file, width=1200, height=760)


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
    """Save a screenshot of the page of photographs with boxes, which `view --serve` serves."""
    source = Path(importlib.util.find_spec("skimage").origin).parent / "data"
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "drawn.jsonl"
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
        made = Path(folder) / "photographs.jsonl"
        pgcli("import", str(rows), "--from", "csv", "--images", folder, "-o", str(made))
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pgcli",
                "view",
                str(made),
                "--images",
                folder,
                "--serve",
                "--no-open",
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            url = next(line for line in server.stdout if line.startswith("http")).strip()
            screenshot(url, file, width=1000, height=490, scale=1.6)
            server.send_signal(signal.SIGINT)


def explanation(file: Path) -> None:
    """Save a screenshot of the page that explains a caption, with its second token selected."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "dusk.html"
        pgcli("explain", "demo", "examples/images/dusk.jpg", "-o", str(page))
        screenshot(page.as_uri(), file, width=1280, height=960, click="#answer button:nth-child(2)")


def pgcli(*arguments: str) -> None:
    """Run a command without messages."""
    subprocess.run([sys.executable, "-m", "pgcli", *arguments, "-q"], cwd=ROOT, check=True)


def screenshot(
    url: str, file: Path, *, width: int, height: int, click: str = "", scale: float = 1
) -> None:
    """Save what a browser of this size shows of a page, after a click on an element."""
    browser_path = next(path for name in BROWSERS if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page(
            viewport={"width": width, "height": height}, device_scale_factor=scale
        )
        tab.goto(url)
        tab.wait_for_selector("img")
        if click:
            tab.click(click)
        tab.wait_for_timeout(500)
        tab.screenshot(path=str(file))
        browser.close()


if __name__ == "__main__":
    gallery(DOCS / "images" / "gallery.png")
    photographs(DOCS / "images" / "photographs.jpg")
    explanation(DOCS / "images" / "explanation.png")
