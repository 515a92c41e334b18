"""Draws boxes and masks with their labels onto an image, legible at any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from PIL import Image, ImageDraw

from pgcli.records import Box, Mask
from pgcli.results.drawings.colours import Colour, LabelColours, contrasting
from pgcli.results.drawings.label_layout import PixelBox, layout_labels, touches
from pgcli.results.drawings.label_text import render_label
from pgcli.rle import decode

MIN_FONT_SIZE = 9  # pixels; smaller text in Pillow's own font is illegible
FILL_ALPHA = 115  # of 255, inside a mask
MAX_LABEL_SHARE = 0.5  # of the image, covered by all labels together


@dataclass(frozen=True)
class DrawStyle:
    """In pixels: the width of lines, of their contrasting border, and the font size."""

    line_width: int
    border_width: int
    font_size: int


def draw_overlay(
    image: Image.Image,
    boxes: Sequence[Box],
    masks: Sequence[Mask | None] | None = None,
    *,
    colours: LabelColours | None = None,
) -> Image.Image:
    """A copy of the RGB image with the boxes, given in its pixels, and their masks, if any.

    The copy has no metadata. Equal boxes with equal labels are drawn once. If the labels would
    cover more than half of the image, as on an icon, those of the smaller boxes are omitted.
    """
    colours = colours or LabelColours()
    image = image.copy()
    image.info = {}  # EXIF and other metadata describe the original
    style = style_for(image.size)
    for box, mask in zip(boxes, masks or (), strict=False):
        if mask is not None and mask.rle is not None:
            _fill_mask(image, decode(mask.rle), colours.of(box.label), style)
    unique = {(box.label, _pixel_box(box, image.size)): None for box in boxes}
    by_size = sorted(unique, key=lambda one: -one[1].width * one[1].height)  # small ones on top
    for label, box_pixels in by_size:
        _draw_box(image, box_pixels, colours.of(label), style)
    _draw_labels(image, by_size, colours, style)
    return image


def style_for(size: tuple[int, int]) -> DrawStyle:
    """The style for an image size: 1, 0 and 9 pixels for an icon, 17, 4 and 108 for 12 MP.

    It follows the mean side, since long narrow images are displayed at a smaller scale.
    """
    mean, short = sqrt(size[0] * size[1]), min(size)
    line_width = max(1, round(min(mean / 200, short / 30)))
    font_size = min(max(12, round(mean / 32)), short // 8)
    border_width = max(1, line_width // 4) if line_width > 1 else 0
    return DrawStyle(line_width, border_width, max(MIN_FONT_SIZE, font_size))


def _pixel_box(box: Box, size: tuple[int, int]) -> PixelBox:
    """The box in whole pixels inside the image, at least one."""
    width, height = size
    left, top = min(max(0, floor(box.xmin)), width - 1), min(max(0, floor(box.ymin)), height - 1)
    right, bottom = min(ceil(box.xmax), width), min(ceil(box.ymax), height)
    return PixelBox(left, top, max(right, left + 1), max(bottom, top + 1))


def _fill_mask(image: Image.Image, mask: np.ndarray, colour: Colour, style: DrawStyle) -> None:
    """Fill the mask (height, width) with the colour, transparent inside and opaque at its edge."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return
    inside = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    alpha = np.where(_eroded(inside, style.line_width), FILL_ALPHA, 255).astype(np.uint8)
    alpha[~inside] = 0
    image.paste(colour, (int(columns[0]), int(rows[0])), Image.fromarray(alpha))


def _eroded(mask: np.ndarray, radius: int) -> np.ndarray:
    """The mask eroded by a square of this radius; outside of the image counts as background."""
    for _ in range(2):  # rows, then columns
        mask = np.pad(mask, ((0, 0), (radius, radius)))
        window, covered = 2 * radius + 1, 1
        while covered < window:  # doubling takes as many steps as the window has bits
            step = min(covered, window - covered)
            mask = mask[:, :-step] & mask[:, step:]
            covered += step
        mask = mask.T
    return mask


def _draw_box(image: Image.Image, box: PixelBox, colour: Colour, style: DrawStyle) -> None:
    line = max(1, min(style.line_width, min(box.width, box.height) // 4))  # small boxes stay open
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = box.left, box.top, box.right - 1, box.bottom - 1
    if border := style.border_width:
        outer = (left - border, top - border, right + border, bottom + border)
        draw.rectangle(outer, outline=contrasting(colour), width=border)
    draw.rectangle((left, top, right, bottom), outline=colour, width=line)


def _draw_labels(
    image: Image.Image,
    boxes: Sequence[tuple[str, PixelBox]],
    colours: LabelColours,
    style: DrawStyle,
) -> None:
    padding = max(1, style.font_size // 5)
    texts = [render_label(label, style.font_size, image.width - 2 * padding) for label, _ in boxes]
    sizes = _within_share(
        [None if text is None else (text.width + 2 * padding, text.height) for text in texts],
        image.size,
    )
    labels = layout_labels([box for _, box in boxes], sizes, image.size)
    draw = ImageDraw.Draw(image)
    for (name, box), label in zip(boxes, labels, strict=True):
        if label is not None and not touches(label, box):
            leader = (*_nearest_point(label, box), *_nearest_point(box, label))
            draw.line(leader, fill=colours.of(name), width=style.line_width)
    for (name, _), label, text in zip(boxes, labels, texts, strict=True):
        if label is not None and text is not None:
            colour = colours.of(name)
            draw.rectangle((label.left, label.top, label.right - 1, label.bottom - 1), fill=colour)
            image.paste(contrasting(colour), (label.left + padding, label.top), text)


def _within_share(
    sizes: Sequence[tuple[int, int] | None], image_size: tuple[int, int]
) -> list[tuple[int, int] | None]:
    """The sizes of the labels, None from the first that would cover too much of the image."""
    free = MAX_LABEL_SHARE * image_size[0] * image_size[1]
    kept: list[tuple[int, int] | None] = []
    for size in sizes:
        free -= size[0] * size[1] if size else 0
        fits = size is not None and free >= 0 and size[1] <= image_size[1]
        kept.append(size if fits else None)
    return kept


def _nearest_point(box: PixelBox, other: PixelBox) -> tuple[int, int]:
    """The point of a box that is nearest to the centre of the other."""
    x, y = (other.left + other.right) // 2, (other.top + other.bottom) // 2
    return min(max(x, box.left), box.right - 1), min(max(y, box.top), box.bottom - 1)
