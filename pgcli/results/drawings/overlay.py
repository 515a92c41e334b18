"""Draws boxes and masks with their labels onto an image, legible at any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from PIL import Image, ImageDraw

from pgcli.records import Box, Mask
from pgcli.results.drawings.colours import Colour, LabelColours, contrasting
from pgcli.results.drawings.labels import PixelFrame, label_position, render_label
from pgcli.rle import decode_mask

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

    The copy has no metadata. Equal boxes with equal labels are drawn once. Labels without a free
    position are skipped, and labels of small boxes if all labels would cover more than half of the
    image, as on an icon.
    """
    colours = colours or LabelColours()
    image = image.copy()
    image.info = {}  # EXIF and other metadata describe the original
    style = style_for(image.size)
    for box, mask in zip(boxes, masks or (), strict=False):
        if mask is not None and mask.rle is not None:
            _fill_mask(image, decode_mask(mask.rle), colours.of(box.label))
    unique = {(box.label, _pixel_box(box, image.size)): None for box in boxes}
    by_size = sorted(unique, key=lambda labelled: -_pixels(labelled[1]))  # small ones on top
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


def _pixel_box(box: Box, size: tuple[int, int]) -> PixelFrame:
    """The box in whole pixels inside the image, at least one."""
    width, height = size
    left, top = min(max(0, floor(box.xmin)), width - 1), min(max(0, floor(box.ymin)), height - 1)
    right, bottom = min(ceil(box.xmax), width), min(ceil(box.ymax), height)
    return left, top, max(right, left + 1), max(bottom, top + 1)


def _pixels(frame: PixelFrame) -> int:
    left, top, right, bottom = frame
    return (right - left) * (bottom - top)


def _fill_mask(image: Image.Image, mask: np.ndarray, colour: Colour) -> None:
    """Fill the mask (height, width) with the colour, half transparent."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return
    inside = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    alpha = np.where(inside, FILL_ALPHA, 0).astype(np.uint8)
    image.paste(colour, (int(columns[0]), int(rows[0])), Image.fromarray(alpha))


def _draw_box(image: Image.Image, box: PixelFrame, colour: Colour, style: DrawStyle) -> None:
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1
    # small boxes stay open
    line = max(1, min(style.line_width, (box[2] - left) // 4, (box[3] - top) // 4))
    draw = ImageDraw.Draw(image)
    if border := style.border_width:
        outer = (left - border, top - border, right + border, bottom + border)
        draw.rectangle(outer, outline=contrasting(colour), width=border)
    draw.rectangle((left, top, right, bottom), outline=colour, width=line)


def _draw_labels(
    image: Image.Image,
    boxes: Sequence[tuple[str, PixelFrame]],
    colours: LabelColours,
    style: DrawStyle,
) -> None:
    """Write the labels of larger boxes first, while there is room."""
    padding = max(1, style.font_size // 5)
    free = MAX_LABEL_SHARE * image.width * image.height
    labels: list[PixelFrame] = []
    for name, box in boxes:
        text = render_label(name, style.font_size, image.width - 2 * padding)
        if text is None:
            continue
        size = (text.width + 2 * padding, text.height)
        label = label_position(box, size, image.size, labels)
        if label is None or (free := free - _pixels(label)) < 0:
            continue
        labels.append(label)
        colour = colours.of(name)
        image.paste(colour, label)
        image.paste(contrasting(colour), (label[0] + padding, label[1]), text)
