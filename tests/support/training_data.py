"""Plain coloured images with texts and labels for tiny models to learn, and outputs of runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pgcli.run.progress.shutdown import GracefulShutdown

COLOURS = {"red": (220, 30, 30), "green": (30, 170, 60), "blue": (40, 70, 220)}


def colour_of(number: int) -> str:
    """The colour of an image."""
    return [*COLOURS][number % len(COLOURS)]


def draw(file: Path, number: int) -> None:
    """Draw an image of one colour, in its own shade."""
    shade = tuple(min(255, value + number) for value in COLOURS[colour_of(number)])
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), shade).save(file)


def write_pairs(folder: Path, count: int = 12) -> Path:
    """A manifest of images with a text and a label each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        draw(folder / "images" / f"{number:02}.png", number)
        colour = colour_of(number)
        row = {"image": f"images/{number:02}.png", "text": f"A {colour} wall.", "label": colour}
        lines.append(json.dumps(row))
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "pairs.jsonl"


def write_folders(folder: Path, count: int = 12) -> Path:
    """A folder with a folder of images for each label."""
    for number in range(count):
        draw(folder / colour_of(number) / f"{number:02}.png", number)
    return folder


def write_questions(folder: Path, count: int = 12, first: int = 0) -> Path:
    """A manifest of images with a prompt and an answer each, in PaliGemma's columns."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(first, first + count):
        draw(folder / "images" / f"{number:02}.png", number)
        colour, is_long = colour_of(number), number % 4 == 3
        row = {
            "image": f"images/{number:02}.png",
            "prefix": "what colour is it?" if is_long else "colour",
            "suffix": f"it is a {colour} wall" if is_long else colour,
        }
        lines.append(json.dumps(row))
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "questions.jsonl"


def metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of the metrics of a run."""
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def stop_after(monkeypatch: pytest.MonkeyPatch, updates: int) -> None:
    """End the next run after so many updates, like a signal."""
    left = iter(range(updates - 1))
    monkeypatch.setattr(GracefulShutdown, "should_stop", lambda self: next(left, None) is None)
