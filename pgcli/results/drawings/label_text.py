"""Renders a label as pixels, in a font that has its characters, truncated to a width."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from pgcli.printable import printable

#: Fonts of common systems with more characters than Pillow's own, which has ASCII and a few
#: symbols. They are tried in this order if a label needs them.
SYSTEM_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "Arial Unicode.ttf",
    "PingFang.ttc",
    "Hiragino Sans GB.ttc",
    "msyh.ttc",
    "malgun.ttf",
    "segoeui.ttf",
    "Arial.ttf",
)
MAX_CHARACTERS = 200  # of a label; no image is wide enough for more
ELLIPSIS = "..."
NO_CHARACTER = "\U0010ffff"  # in no font, so it renders as the font's missing-character glyph

Font = ImageFont.FreeTypeFont


def render_label(label: str, size: int, width: int) -> Image.Image | None:
    """The label as a mask (mode L) with a font size of `size`, no wider than `width`.

    A longer label ends in dots; None if not even its first character fits, or if it is blank.
    Control characters are escaped. A character that no installed font has is replaced by its ASCII
    base character or escaped.
    """
    text = unicodedata.normalize("NFC", printable(label.strip()[:MAX_CHARACTERS]))
    if not text:
        return None
    name, text = _best_font(text)
    font = _font(name, size)
    text = _truncated(text, lambda part: font.getlength(part) <= width)
    if not text:
        return None
    ascent, descent = font.getmetrics()
    mask = Image.new("L", (max(1, round(font.getlength(text))), ascent + descent))
    ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=font)  # stacked accents are cropped
    return mask


def _best_font(text: str) -> tuple[str | None, str]:
    """The font with most of the text's characters, and the text with the others replaced."""
    if text.isascii():
        return None, text
    best, characters = None, set(text)
    missing = _missing(None, characters)
    for name in _installed() if missing else ():
        if len(fewer := _missing(name, characters)) < len(missing):
            best, missing = name, fewer
        if not missing:
            break
    return best, "".join(_ascii_for(c) if c in missing else c for c in text)


def _ascii_for(character: str) -> str:
    base = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return base or character.encode("unicode_escape").decode()


def _truncated(text: str, fits: Callable[[str], bool]) -> str:
    """The text if it fits, else its longest prefix that fits with dots, or an empty string."""
    if fits(text):
        return text
    low, high = 0, len(text) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[:middle] + ELLIPSIS) else (low, middle - 1)
    return text[:low].rstrip() + ELLIPSIS if low else ""


def _missing(name: str | None, characters: set[str]) -> set[str]:
    return {c for c in characters if not c.isascii() and not _has(name, c)}


@lru_cache(maxsize=4096)
def _has(name: str | None, character: str) -> bool:
    font = _font(name, 16)
    glyph, missing = font.getmask(character), font.getmask(NO_CHARACTER)
    return glyph.size != missing.size or bytes(glyph) != bytes(missing)


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    def found() -> Iterator[str]:
        for name in SYSTEM_FONTS:
            try:
                _font(name, 16)
            except OSError:
                continue
            yield name

    return tuple(found())


@lru_cache(maxsize=64)
def _font(name: str | None, size: int) -> Font:
    if name is not None:
        return ImageFont.truetype(name, size)
    font = ImageFont.load_default(size)
    assert isinstance(font, Font)  # without a size, Pillow may return its bitmap font
    return font
