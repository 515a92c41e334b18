"""Measures the page of `pgcli view --serve` with many rows: its first screen, a search, and memory.

    python benchmarks/served_page.py [--rows 1000000] [--parquet]

It writes a result file with captions and boxes into a temporary folder, serves it, and opens the
page in Chromium (`pip install playwright`). The searched word is in the last row only.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from pgcli.output import result_target, write_result_file
from pgcli.records import CORNERS
from pgcli.rows import RowSchema

IMAGES, PART_ROWS = 200, 50_000
LABELS = ("cat", "dog", "red car", "bird", "person")
TIMES = {"load_ms": 12.345, "vision_ms": 100.123, "prefill_ms": 20.5, "decode_ms": 200.25}


def rows(total: int) -> Iterator[dict[str, Any]]:
    """Captions and boxes by turns."""
    random.seed(1)
    for n in range(total):
        label, second = random.choice(LABELS), random.choice(LABELS)
        boxes = []
        for _ in range(random.randrange(1, 3) if n % 2 else 0):
            x, y = random.randrange(200), random.randrange(200)
            corners = dict(zip(CORNERS, (x, y, x + 120.5, y + 99.25), strict=True))
            numbers = {"score": 0.5, "confidence": round(random.random(), 4)}
            boxes.append({"label": label, **corners, **numbers})
        caption = f"a {label} standing beside a {second} on a street in the evening light"
        yield {
            **{"index": n, "id": f"photos/{n:07}.jpg", "image": f"{n % IMAGES}.jpg"},
            **{"width": 640, "height": 480, "task": "detect" if n % 2 else "caption"},
            **{"prompt": "detect cat ; dog" if n % 2 else "caption en", "tokens": 20},
            "answer": f"<loc0012><loc0100><loc0500><loc0600> {label}" if n % 2 else caption,
            **{"boxes": boxes, "finish": "stop", "logprob": -random.random(), "batch": 8},
            **TIMES,
            **{"model": "demo", "error": None, "error_message": None},
        }
    last = {"index": total, "id": "last", "image": "0.jpg", "task": "caption"}
    last |= {"prompt": "caption en", "answer": "zebrafinch", "boxes": []}
    yield dict.fromkeys(RowSchema().columns) | last


def write(folder: Path, total: int, *, parquet: bool) -> Path:
    """The result file, or a folder of Parquet files, and its images."""
    for number in range(IMAGES):
        colour = (number * 37 % 256, number * 91 % 256, 160)
        Image.new("RGB", (640, 480), colour).save(folder / f"{number}.jpg")
    output, remaining = folder / ("rows" if parquet else "rows.jsonl"), rows(total - 1)
    if not parquet:
        with output.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in remaining)
        return output
    output.mkdir()
    for part in range(-(-total // PART_ROWS)):
        target = result_target(str(output / f"part-{part:06}.parquet"))
        write_result_file(target, islice(remaining, PART_ROWS), RowSchema())
    return output


def measure(output: Path) -> None:
    """Serve the output, use its page, and print seconds and the server's peak memory."""
    run = [sys.executable, "-m", "pgcli", "view", str(output), "--serve", "--no-open", "--quiet"]
    words = ["--images", str(output.parent)]
    began = perf_counter()
    server = subprocess.Popen([*run, *words], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    print(f"address {perf_counter() - began:.1f} s")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell")
        )
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        status = page.locator("#status")

        def step(name: str, act: Callable[[], object], is_done: Callable[[], bool]) -> None:
            began = perf_counter()
            act()
            while not is_done():
                page.wait_for_timeout(20)
            print(f"{name} {perf_counter() - began:.1f} s: {status.inner_text()}")

        def is_searched() -> bool:
            return "searching" not in status.inner_text()

        images = page.locator(".card img")
        step("first screen", lambda: page.goto(address), lambda: images.count() >= 15)
        step("all rows", lambda: None, is_searched)
        last = page.locator(".card .id", has_text="last")
        step("a rare word", lambda: page.fill("#search", "zebrafinch"), lambda: last.count() == 1)
        many = page.locator(".card .id", has_text="photos")
        step("a frequent word", lambda: page.fill("#search", "dog"), lambda: many.count() > 15)
        step("all rows with it", lambda: None, is_searched)
        step("sorted", lambda: page.select_option("#sort", "logprob"), is_searched)
        browser.close()
    memory = Path(f"/proc/{server.pid}/status").read_text().split("VmHWM:")[1].split()[0]
    print(f"peak memory {int(memory) / 1024:.0f} MB")
    server.send_signal(signal.SIGINT)
    server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parquet", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        measure(write(Path(folder), options.rows, parquet=options.parquet))


if __name__ == "__main__":
    main()
