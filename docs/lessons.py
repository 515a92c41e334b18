"""Writes what the lessons print into docs/explanation/lessons.md, and draws their figures.

python docs/lessons.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "lessons.md"
#: A lesson's block on the page: its command and what it prints.
BLOCK = re.compile(r"^```text\n\$ python (examples/lessons/(\w+)\.py)\n(.*?)^```$", re.M | re.S)
#: Lessons that draw, and their figures.
FIGURES = {"rope": "rotary-scores.png", "contrastive": "contrastive-losses.png"}


def run(*arguments: str) -> str:
    """What a program of the checkout prints."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def with_outputs(page: str) -> str:
    """The page with what its lessons print now."""
    return BLOCK.sub(lambda block: f"```text\n$ python {block[1]}\n{run(block[1])}```", page)


if __name__ == "__main__":
    PAGE.write_text(with_outputs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for lesson, figure in FIGURES.items():
        run(f"examples/lessons/{lesson}.py", str(ROOT / "docs" / "images" / figure))
