"""Makes a PDF of each page of this project's documentation, for the how-to on searching PDFs.

    python examples/make_pdfs.py reports

Each PDF has the page's text on sheets of A4, as an office scanner would deliver it: pictures.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH, HEIGHT, MARGIN = 1240, 1754, 110  # A4 at 150 dots an inch
LINES, COLUMNS, STEP = 48, 74, 32


def sheets(text: str) -> Iterator[Image.Image]:
    """The text on sheets of paper, headings larger."""
    wrapped: list[tuple[str, bool]] = []
    for line in text.splitlines():
        is_heading = line.startswith("#")
        for piece in textwrap.wrap(line.lstrip("# "), 44 if is_heading else COLUMNS) or [""]:
            wrapped.append((piece, is_heading))
    small, large = ImageFont.load_default(24), ImageFont.load_default(40)
    for start in range(0, len(wrapped), LINES):
        sheet = Image.new("RGB", (WIDTH, HEIGHT), "white")
        draw = ImageDraw.Draw(sheet)
        for number, (piece, is_heading) in enumerate(wrapped[start : start + LINES]):
            place = (MARGIN, MARGIN + number * STEP)
            draw.text(place, piece, fill="black", font=large if is_heading else small)
        yield sheet


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "how-to").glob("*.md")):
        first, *others = sheets(page.read_text(encoding="utf-8"))
        file = folder / f"{page.stem}.pdf"
        first.save(file, save_all=True, append_images=others, resolution=150, quality=85)
        print(f"{file}: {1 + len(others)} pages")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "reports"))
