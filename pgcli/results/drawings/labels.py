"""The labels of boxes: their text as pixels, and where they are in the image."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from pgcli.boxes import overlap
from pgcli.printable import printable

#: Left, top, right and bottom in whole pixels, as Pillow takes them; the last two are exclusive.
PixelFrame = tuple[int, int, int, int]

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
NO_CHARACTER = "\U0010ffff"  # in no font, so it renders as the font's missing-character glyph


def label_position(
    box: PixelFrame,
    size: tuple[int, int],
    image_size: tuple[int, int],
    taken: Sequence[PixelFrame],
) -> PixelFrame | None:
    """Where a label of `size` (width, height) is: above its box, else at its top, below, at its
    bottom, always inside the image. None where every position overlaps a label that is there.
    """
    width, height = size
    left = max(0, min(box[0], image_size[0] - width))
    right = left + width
    for top in (box[1] - height, box[1], box[3], box[3] - height):
        bottom = top + height
        is_inside = top >= 0 and bottom <= image_size[1] and right <= image_size[0]
        if is_inside and not any(
            overlap(left, right, label[0], label[2]) and overlap(top, bottom, label[1], label[3])
            for label in taken
        ):
            return left, top, right, bottom
    return None


def render_label(label: str, size: int, width: int) -> Image.Image | None:
    """The label as a mask (mode L) with a font size of `size`, no wider than `width`.

    A longer label ends in dots; None if not even its first character fits, or if it is blank.
    Control characters are escaped. A character that no installed font has is replaced by its ASCII
    base character or escaped.
    """
    text = unicodedata.normalize("NFC", printable(label.strip()[:MAX_CHARACTERS]))
    font_name, text = _best_font(text)
    font = _font(font_name, size)
    ending = ""
    while text and font.getlength(text + ending) > width:
        text, ending = text[:-1].rstrip(), "..."
    if not text:
        return None
    ascent, descent = font.getmetrics()
    text += ending
    mask = Image.new("L", (max(1, round(font.getlength(text))), ascent + descent))
    ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=font)  # stacked accents are cropped
    return mask


def _best_font(text: str) -> tuple[str | None, str]:
    """The font with most of the text's characters, and the text with the others replaced."""
    best, characters = None, {character for character in text if not character.isascii()}
    missing = _missing(None, characters)
    for name in _installed() if missing else ():
        if len(fewer := _missing(name, characters)) < len(missing):
            best, missing = name, fewer
    return best, "".join(_ascii_for(c) if c in missing else c for c in text)


def _ascii_for(character: str) -> str:
    base = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return base or character.encode("unicode_escape").decode()


def _missing(name: str | None, characters: set[str]) -> set[str]:
    return {character for character in characters if not _has(name, character)}


@lru_cache(maxsize=4096)
def _has(name: str | None, character: str) -> bool:
    font = _font(name, 16)
    glyph, missing = font.getmask(character), font.getmask(NO_CHARACTER)
    return glyph.size != missing.size or bytes(glyph) != bytes(missing)


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    installed = []
    for name in SYSTEM_FONTS:
        try:
            _font(name, 16)
        except OSError:
            continue
        installed.append(name)
    return tuple(installed)


@lru_cache(maxsize=64)
def _font(name: str | None, size: int) -> ImageFont.FreeTypeFont:
    if name is not None:
        return ImageFont.truetype(name, size)
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # without a size, it may be a bitmap font
    return font
