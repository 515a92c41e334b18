"""Labels as pixels: a font that has their letters, cut to the room there is."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from pgcli.printable import printable

#: Fonts of common systems that know more letters than Pillow's own, which has plain ASCII and a
#: few signs: those looked for where a label needs them, the wider first.
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
LONGEST = 200  # characters of a label that are looked at: no picture has room for more
ELLIPSIS = "..."
NO_LETTER = "\U0010ffff"  # no font has it, and so it shows what a font draws for the unknown

Font = ImageFont.FreeTypeFont


def lettered(label: str, size: int, width: int) -> Image.Image | None:
    """The label as a mask (mode L) `size` pixels high in its letters, no wider than `width`.

    What is too long ends in dots; None where not even its first letter has room, or it is blank.
    Control characters are spelled out, as is a letter that no font here has, if it is not an
    ASCII one with marks.
    """
    text = unicodedata.normalize("NFC", printable(label.strip()[:LONGEST]))
    if not text:
        return None
    name, text = _spelled(text)
    font = _font(name, size)
    text = _cut(text, lambda part: font.getlength(part) <= width)
    if not text:
        return None
    ascent, descent = font.getmetrics()
    mask = Image.new("L", (max(1, round(font.getlength(text))), ascent + descent))
    ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=font)  # marks piled high are cut off
    return mask


def _spelled(text: str) -> tuple[str | None, str]:
    """The font that has most of the text's letters, and the text in letters that it has."""
    if text.isascii():
        return None, text
    first, letters = None, set(text)
    missing = _missing(None, letters)
    for name in _installed() if missing else ():
        if len(fewer := _missing(name, letters)) < len(missing):
            first, missing = name, fewer
        if not missing:
            break
    return first, "".join(_plainer(letter) if letter in missing else letter for letter in text)


def _plainer(letter: str) -> str:
    base = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return base or letter.encode("unicode_escape").decode()


def _cut(text: str, fits: Callable[[str], bool]) -> str:
    """The text if it fits, else the longest beginning of it that does with the dots, or nothing."""
    if fits(text):
        return text
    low, high = 0, len(text) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[:middle] + ELLIPSIS) else (low, middle - 1)
    return text[:low].rstrip() + ELLIPSIS if low else ""


def _missing(name: str | None, letters: set[str]) -> set[str]:
    return {letter for letter in letters if not letter.isascii() and not _has(name, letter)}


@lru_cache(maxsize=4096)
def _has(name: str | None, letter: str) -> bool:
    font = _font(name, 16)
    shown, unknown = font.getmask(letter), font.getmask(NO_LETTER)
    return shown.size != unknown.size or bytes(shown) != bytes(unknown)


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
    assert isinstance(font, Font)  # without a size it may be Pillow's old one of fixed dots
    return font
