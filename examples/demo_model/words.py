"""Words in several fonts: their size, their place in a drawing, and the glyphs' edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

from PIL import ImageFont

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_LETTERS = 12
#: Pillow's own font, and four of the DejaVu family, reduced to letters and digits.
FONTS = ("Aileron", "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono-Bold")
FOLDER = Path(__file__).with_name("fonts")
NOMINAL = 200  # pixels: the size at which fonts are measured


@lru_cache(maxsize=64)
def font_of(name: str, size: float) -> ImageFont.FreeTypeFont:
    """The font in a size in pixels. Its layout does not depend on the libraries of the machine."""
    basic = ImageFont.Layout.BASIC
    if name != "Aileron":
        return ImageFont.truetype(FOLDER / f"{name}.ttf", size, layout_engine=basic)
    font = ImageFont.load_default(NOMINAL)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font.font_variant(size=size, layout_engine=basic)


@cache
def cap_height(font: str) -> float:
    """The height of a capital letter, in sizes of the font."""
    return -font_of(font, NOMINAL).getbbox("H", anchor="ls")[1] / NOMINAL


def letter_edges(text: str, font: str) -> tuple[float, ...]:
    """Where each letter begins and the last one ends, in sizes of the font."""
    widths = [_length(text[:1], font)] + [
        _length(a + b, font) - _length(a, font) for a, b in pairwise(text)
    ]
    return tuple(edge / NOMINAL for edge in accumulate(widths, initial=0.0))


@cache
def _length(text: str, font: str) -> float:
    """The width of one or two letters in the nominal size."""
    return font_of(font, NOMINAL).getlength(text)


@dataclass(frozen=True)
class Word:
    """A word on one line: `x` is its left end and `y` its baseline, in pixels as is `size`."""

    text: str
    font: str
    size: float
    rgb: tuple[int, int, int]
    x: float
    y: float

    @property
    def edges(self) -> tuple[float, ...]:
        """Where each letter begins and the last one ends, in pixels from the left."""
        return tuple(self.x + self.size * edge for edge in letter_edges(self.text, self.font))

    @property
    def top(self) -> float:
        """The upper end of the capital letters, in pixels."""
        return self.y - self.size * cap_height(self.font)
