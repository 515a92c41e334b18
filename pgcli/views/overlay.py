"""Boxes and masks painted on a picture, each with its label, legible at any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from PIL import Image, ImageDraw

from pgcli.records import Box, Mask
from pgcli.rle import decode
from pgcli.views.colours import Colour, Colours, readable_on
from pgcli.views.label_layout import Frame, places, touches
from pgcli.views.label_text import lettered

SMALLEST_LETTERS = 9  # pixels; smaller ones of Pillow's own font cannot be read
FILL = 115  # of 255: how much of a label's colour a mask's inside has
LABEL_SHARE = 0.5  # of a picture that all labels together may cover


@dataclass(frozen=True)
class Pen:
    """Pixels: how wide lines are, the lighter or darker rim along them, and how high letters."""

    line: int
    rim: int
    letters: int


def painted(
    picture: Image.Image,
    boxes: Sequence[Box],
    masks: Sequence[Mask | None] | None = None,
    *,
    colours: Colours | None = None,
) -> Image.Image:
    """A copy of the RGB picture with the boxes, given in its pixels, and their masks, if any.

    Nothing is kept of the original but its pixels. The same box under the same label is painted
    once. Where labels would cover more than half of the picture, as on an icon, the smaller boxes
    go without: the colours still tell them apart.
    """
    colours = colours or Colours()
    picture = picture.copy()
    picture.info = {}  # EXIF and the like: true of the original, not of this one
    pen = pen_for(picture.size)
    for box, mask in zip(boxes, masks or (), strict=False):
        if mask is not None and mask.rle is not None:
            _fill(picture, decode(mask.rle), colours.of(box.label), pen)
    frames = {(box.label, _frame(box, picture.size)): None for box in boxes}
    found = sorted(frames, key=lambda one: -one[1].width * one[1].height)  # small ones on top
    for label, frame in found:
        _outline(picture, frame, colours.of(label), pen)
    _label(picture, found, colours, pen)
    return picture


def pen_for(size: tuple[int, int]) -> Pen:
    """What suits a picture of this size: 1, 0 and 9 pixels for an icon, 17, 4 and 108 for 12 MP.

    Long narrow pictures are looked at from further off than their short side tells.
    """
    mean, short = sqrt(size[0] * size[1]), min(size)
    line = max(1, round(min(mean / 200, short / 30)))
    letters = min(max(12, round(mean / 32)), short // 8)
    rim = max(1, line // 4) if line > 1 else 0
    return Pen(line, rim, max(SMALLEST_LETTERS, letters))


def _frame(box: Box, size: tuple[int, int]) -> Frame:
    """The box in whole pixels inside the picture, at least one."""
    width, height = size
    left, top = min(max(0, floor(box.xmin)), width - 1), min(max(0, floor(box.ymin)), height - 1)
    right, bottom = min(ceil(box.xmax), width), min(ceil(box.ymax), height)
    return Frame(left, top, max(right, left + 1), max(bottom, top + 1))


def _fill(picture: Image.Image, mask: np.ndarray, colour: Colour, pen: Pen) -> None:
    """Lay the colour over the mask (height, width), thin within and full along its border."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return
    inside = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    strength = np.where(_shrunk(inside, pen.line), FILL, 255).astype(np.uint8)
    strength[~inside] = 0
    picture.paste(colour, (int(columns[0]), int(rows[0])), Image.fromarray(strength))


def _shrunk(mask: np.ndarray, reach: int) -> np.ndarray:
    """The mask less a border as wide as `reach`, along the edge of the picture too."""
    for _ in range(2):  # across, then down
        mask = np.pad(mask, ((0, 0), (reach, reach)))
        window, covered = 2 * reach + 1, 1
        while covered < window:  # doubled: as many steps as the window has bits
            step = min(covered, window - covered)
            mask = mask[:, :-step] & mask[:, step:]
            covered += step
        mask = mask.T
    return mask


def _outline(picture: Image.Image, frame: Frame, colour: Colour, pen: Pen) -> None:
    line = max(1, min(pen.line, min(frame.width, frame.height) // 4))  # a small box stays hollow
    pencil = ImageDraw.Draw(picture)
    left, top, right, bottom = frame.left, frame.top, frame.right - 1, frame.bottom - 1
    if pen.rim:
        outer = (left - pen.rim, top - pen.rim, right + pen.rim, bottom + pen.rim)
        pencil.rectangle(outer, outline=readable_on(colour), width=pen.rim)
    pencil.rectangle((left, top, right, bottom), outline=colour, width=line)


def _label(
    picture: Image.Image, found: Sequence[tuple[str, Frame]], colours: Colours, pen: Pen
) -> None:
    edge = max(1, pen.letters // 5)
    words = [lettered(label, pen.letters, picture.width - 2 * edge) for label, _ in found]
    sizes = _that_fit(
        [None if word is None else (word.width + 2 * edge, word.height) for word in words],
        picture.size,
    )
    tags = places([frame for _, frame in found], sizes, picture.size)
    pencil = ImageDraw.Draw(picture)
    for (label, frame), tag in zip(found, tags, strict=True):
        if tag is not None and not touches(tag, frame):
            line = (*_nearest(tag, frame), *_nearest(frame, tag))
            pencil.line(line, fill=colours.of(label), width=pen.line)
    for (label, _), tag, word in zip(found, tags, words, strict=True):
        if tag is not None and word is not None:
            colour = colours.of(label)
            pencil.rectangle((tag.left, tag.top, tag.right - 1, tag.bottom - 1), fill=colour)
            picture.paste(readable_on(colour), (tag.left + edge, tag.top), word)


def _that_fit(
    sizes: Sequence[tuple[int, int] | None], picture: tuple[int, int]
) -> list[tuple[int, int] | None]:
    """The sizes of the labels, None from where on they would cover too much of the picture."""
    room = LABEL_SHARE * picture[0] * picture[1]
    fitting: list[tuple[int, int] | None] = []
    for size in sizes:
        room -= size[0] * size[1] if size else 0
        fits = size is not None and room >= 0 and size[1] <= picture[1]
        fitting.append(size if fits else None)
    return fitting


def _nearest(one: Frame, other: Frame) -> tuple[int, int]:
    """The point of one frame that is nearest to the middle of the other."""
    x, y = (other.left + other.right) // 2, (other.top + other.bottom) // 2
    return min(max(x, one.left), one.right - 1), min(max(y, one.top), one.bottom - 1)
