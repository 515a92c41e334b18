"""The labels of boxes: their text as pixels, and their positions in the image."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from pgcli.boxes import overlap
from pgcli.printable import printable

#: Left, top, right and bottom in whole pixels, as Pillow takes them; the last two are exclusive.
PixelFrame = tuple[int, int, int, int]

#: Fonts of common systems for labels that are not ASCII, which is all that Pillow's own font has.
#: The first installed one is used.
SYSTEM_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "DejaVuSans.ttf",
    "Arial Unicode.ttf",
    "PingFang.ttc",
    "msyh.ttc",
    "segoeui.ttf",
)
MAX_CHARACTERS = 200  # of a label; no image is wide enough for more


def label_position(
    box: PixelFrame,
    size: tuple[int, int],
    image_size: tuple[int, int],
    taken: Sequence[PixelFrame],
) -> PixelFrame | None:
    """The position of a label of `size` (width, height): above its box, else at the top of the box,
    below it or at its bottom. None if every position is outside the image or overlaps a label.
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

    Control characters are escaped, and a label that is too long ends in dots. None for a blank
    label, and if not even the first character fits.
    """
    text, ending = unicodedata.normalize("NFC", printable(label.strip()[:MAX_CHARACTERS])), ""
    font = _font(size, is_ascii=text.isascii())
    while text and font.getlength(text + ending) > width:
        text, ending = text[:-1].rstrip(), "..."
    if not text:
        return None
    ascent, descent = font.getmetrics()
    text += ending
    mask = Image.new("L", (max(1, round(font.getlength(text))), ascent + descent))
    ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=font)  # stacked accents are cropped
    return mask


@lru_cache(maxsize=64)
def _font(size: int, *, is_ascii: bool) -> ImageFont.FreeTypeFont:
    for name in () if is_ascii else SYSTEM_FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # with a size, it is no bitmap font
    return font
