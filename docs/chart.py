"""Draws the chart of speed with the figures of speed.md: `python docs/chart.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
FIGURES, CHART = DOCS / "explanation" / "speed.md", DOCS / "images" / "speed.svg"
#: The first cell of each row of speed.md that the chart shows, its heading and its text.
BARS = (
    ("Two cores of a Xeon with AMX, batch 8, 16 tokens", "pgcli", "PaliGemma 3b, bfloat16"),
    ("", "pgcli, `--quantize int8`", "3b in int8; transformers in bfloat16"),
    ("One H200, bfloat16", "3b, batch 256, 16 tokens", "PaliGemma 3b, batch 256, 16 tokens"),
    ("", "3b, batch 64, 64 tokens", "PaliGemma 3b, batch 64, 64 tokens"),
    ("", "PaliGemma 2 3b, batch 256, 16 tokens", "PaliGemma 2 3b, batch 256, 16 tokens"),
    ("", "PaliGemma 2 3b, batch 64, 16 tokens", "PaliGemma 2 3b, batch 64, 16 tokens"),
)
NOTE = "224 px, random weights, the model alone; the same checkpoint, batch and pixels"
WIDTH, LEFT, SCALE, ROW, BAR = 860, 340, 125, 30, 18
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.heading { font-weight: 600 } .note { font-size: 12px; fill: #59636e }
.pgcli { fill: #b5305f } .line { stroke: #59636e; stroke-dasharray: 4 3 }
.background { fill: #ffffff }
"""


class Speed(NamedTuple):
    """How many times as fast as transformers a row of speed.md is."""

    heading: str
    text: str
    ratio: float


def speeds(page: str) -> list[Speed]:
    """The bars, with the first ratio in each one's row of the page."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    found = []
    for heading, cell, text in BARS:
        ratios = [
            float(ratio)
            for row in rows
            if row[0] == cell
            for ratio in re.findall(r"([\d.]+) x", row[-1])[:1]
        ]
        if not ratios:
            raise SystemExit(f"speed.md has no row {cell!r} with a ratio")
        found.append(Speed(heading, text, ratios[0]))
    return found


def chart(bars: list[Speed]) -> str:
    """The SVG."""
    shapes, y = [], 34
    for bar in bars:
        if bar.heading:
            y += 16
            shapes.append(f'<text class="heading" x="16" y="{y}">{escape(bar.heading)}</text>')
            y += 10
        width, middle = round(bar.ratio * SCALE), y + BAR - 4
        shapes += (
            f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(bar.text)}</text>',
            f'<rect class="pgcli" x="{LEFT}" y="{y}" width="{width}" height="{BAR}" rx="3"/>',
            f'<text x="{LEFT + width + 8}" y="{middle}">{bar.ratio:g} x</text>',
        )
        y += ROW
    line = LEFT + SCALE
    shapes += (
        f'<line class="line" x1="{line}" y1="30" x2="{line}" y2="{y}"/>',
        f'<text x="{line}" y="22" text-anchor="middle">transformers 5.23 = 1</text>',
        f'<text class="note" x="16" y="{y + 22}">{escape(NOTE)}</text>',
    )
    height = y + 36
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    title = "images per second relative to transformers"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            f'<rect class="background" width="{WIDTH}" height="{height}" rx="8"/>',
            *shapes,
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    CHART.write_text(chart(speeds(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")
