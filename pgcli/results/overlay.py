"""Draws boxes and masks with their labels onto an image, and traces masks as contours."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from math import ceil, floor, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFile, ImageFont

from pgcli.boxes import overlap
from pgcli.images import ImageLimits
from pgcli.records import Box, Mask, Region, Rle
from pgcli.rle import decode_mask, mask_bounds, run_ends
from pgcli.text import printable

#: The usual suffix of files of each format.
SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        "JPEG": ".jpg",
        "PNG": ".png",
        "WEBP": ".webp",
        "GIF": ".gif",
        "BMP": ".bmp",
        "TIFF": ".tif",
        "AVIF": ".avif",
        "PPM": ".ppm",
    }
)
#: How Pillow saves each format, so that lines and letters stay sharp.
SAVE_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "JPEG": {"quality": 95, "subsampling": 0},
        "PNG": {"compress_level": 4},  # a third of the time of 6, and a few percent larger
        "WEBP": {"lossless": True, "quality": 20, "method": 0},  # lossy WebP blurs thin lines
        "TIFF": {"compression": "tiff_lzw"},
        "AVIF": {"quality": 90, "speed": 8, "subsampling": "4:4:4"},
    }
)
#: The endings of drawings, each with its format.
DRAWN = MappingProxyType({".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"})


def drawing_file(image: Image.Image, original: ImageFile.ImageFile, ending: str) -> bytes:
    """The RGB image as a file for this ending, with the colour profile of its original.

    Raises OSError or ValueError.
    """
    profile = original.info.get("icc_profile")
    # a profile for grey or CMYK is wrong for RGB
    is_rgb = isinstance(profile, bytes) and profile[16:20] == b"RGB "
    format, file = DRAWN[ending.lower()], BytesIO()
    image.save(file, format, **SAVE_OPTIONS[format], icc_profile=profile if is_rgb else None)
    return file.getvalue()


Colour = tuple[int, int, int]

#: Okabe and Ito's seven, Tol's indigo and wine, and a light green. Any two are distinguishable
#: with normal, protan, deutan and tritan vision.
PALETTE: tuple[Colour, ...] = (
    (230, 159, 0),
    (0, 158, 115),
    (51, 34, 136),
    (204, 121, 167),
    (169, 255, 140),
    (136, 34, 85),
    (240, 228, 66),
    (86, 180, 233),
    (213, 94, 0),
    (0, 114, 178),
)
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)


class LabelColours:
    """The colour of each label: of labels in `distinct` by their order, of others a hash."""

    def __init__(self, distinct: Iterable[str] = ()):
        labels = sorted({_normalized(label) for label in distinct})
        self._assigned = {label: number % len(PALETTE) for number, label in enumerate(labels)}

    def extend(self, labels: Iterable[str]) -> None:
        """Assign the next colours to labels that have none yet."""
        for label in map(_normalized, labels):
            self._assigned.setdefault(label, len(self._assigned) % len(PALETTE))

    def of(self, label: str) -> Colour:
        """The label's colour; case and surrounding whitespace are ignored."""
        normalized = _normalized(label)
        # Python's hash of a string differs between processes
        digest = blake2b(normalized.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        hashed = int.from_bytes(digest, "big") % len(PALETTE)
        return PALETTE[self._assigned.get(normalized, hashed)]


def contrasting(colour: Colour) -> Colour:
    """Black or white, with a contrast of at least 4.5 to 1 to a colour of the palette (WCAG)."""
    red, green, blue = colour
    return BLACK if 0.3 * red + 0.6 * green + 0.1 * blue > 96 else WHITE


def _normalized(label: str) -> str:
    return label.strip().casefold()


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


MIN_FONT_SIZE = 9  # pixels; smaller text in Pillow's own font is illegible
FILL_ALPHA = 115  # of 255, inside a mask


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
    position are skipped.
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
    """Write the labels of larger boxes first."""
    padding = max(1, style.font_size // 5)
    labels: list[PixelFrame] = []
    for name, box in boxes:
        text = render_label(name, style.font_size, image.width - 2 * padding)
        if text is None:
            continue
        size = (text.width + 2 * padding, text.height)
        label = label_position(box, size, image.size, labels)
        if label is None:
            continue
        labels.append(label)
        colour = colours.of(name)
        image.paste(colour, label)
        image.paste(contrasting(colour), (label[0] + padding, label[1]), text)


MAX_SIDES = 1 << 20  # pixel sides of all contours; a mask with more is noise, and has none
MAX_CONTOURS = 64  # the largest ones; masks of the model have 64 pixels a side and few contours
MAX_BRIDGE_POINTS = 512  # points of a contour that are tried as the end of a bridge
SAMPLES = 96  # per side of a drawn mask; the model's masks have 64 per side of a box

#: The distances by which a point can move without passing a pixel's centre. A polygon contains the
#: centres on its left and upper sides only.
HALF_PIXEL, UNDER_HALF = 0.5, math.nextafter(0.5, 0.0)


def contours(pixels: np.ndarray) -> list[np.ndarray]:
    """The contours through the midpoints of the pixel sides of a mask, (n, 2) of x and y each.

    Stairs become slopes, which contain the same pixel centres. The mask is on the right of every
    contour, so holes have the opposite direction.
    """
    padded = np.pad(pixels.astype(np.int8), 1)
    below, right = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    (y, x), (v, u) = np.nonzero(below), np.nonzero(right)
    if len(x) + len(u) > MAX_SIDES:
        return []
    across, up = below[y, x] > 0, right[v, u] > 0  # with the mask on the right
    starts_n2 = np.concatenate([np.stack([x + ~across, y], 1), np.stack([u, v + up], 1)])
    ends_n2 = np.concatenate([np.stack([x + across, y], 1), np.stack([u, v + ~up], 1)])
    ends = dict[tuple[int, int], list[tuple[int, int]]]()  # by start
    for start, end in zip(
        map(tuple, starts_n2.tolist()), map(tuple, ends_n2.tolist()), strict=True
    ):
        ends.setdefault(start, []).append(end)
    loops = []
    for first, following in ends.items():
        while following:
            middles, corner = list[tuple[float, float]](), first
            while leaving := ends[corner]:
                end = leaving.pop()
                middles.append(((corner[0] + end[0]) / 2, (corner[1] + end[1]) / 2))
                corner = end
            contour_n2 = np.array(middles)
            before = contour_n2 - np.roll(contour_n2, 1, axis=0)
            after = np.roll(contour_n2, -1, axis=0) - contour_n2
            # without the points inside of straight lines
            loops.append(contour_n2[before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]])
    return loops


def polygon(mask: Rle, extent: Region | None = None) -> np.ndarray:
    """The mask as one closed polygon for YOLO and Label Studio, (n, 2) of x, y in pixels.

    It contains the centres of exactly the mask's pixels. Bridges of zero width join parts and
    holes, as in Ultralytics. Empty for an empty mask, and for one larger than any image, which a
    few characters can encode. With an `extent`, the polygon extends to these sides.
    """
    merged = np.empty((0, 2))
    if mask.size[0] * mask.size[1] > ImageLimits().max_pixels:
        return merged
    for contour in sorted(contours(decode_mask(mask)), key=enclosed_area, reverse=True)[
        :MAX_CONTOURS
    ]:
        merged = bridged(merged, contour) if len(merged) else contour
    return fitted_polygon(merged, extent) if extent and len(merged) else merged


def fitted_polygon(polygon_n2: np.ndarray, extent: Region) -> np.ndarray:
    """The polygon with this extent: less than half a pixel is cut off, so that no pixel's centre
    changes sides, and lines of zero width reach further out.
    """
    for number, edge in enumerate(extent):
        axis, outwards = number % 2, -1 if number < 2 else 1
        beyond = (polygon_n2[:, axis] - edge) * outwards
        farthest = int(beyond.argmax())
        if beyond[farthest] < 0:
            tip = polygon_n2[farthest].copy()
            tip[axis] = edge
            polygon_n2 = np.insert(polygon_n2, farthest + 1, [tip, polygon_n2[farthest]], axis=0)
        elif beyond[farthest] <= (HALF_PIXEL if number < 2 else UNDER_HALF):
            following, next_n2 = np.roll(beyond, -1), np.roll(polygon_n2, -1, axis=0)
            crossing = np.flatnonzero(beyond * following < 0)
            share = (beyond[crossing] / (beyond - following)[crossing])[:, None]
            cuts_n2 = polygon_n2[crossing] + share * (next_n2 - polygon_n2)[crossing]
            polygon_n2 = np.insert(polygon_n2, crossing + 1, cuts_n2, axis=0)
            inwards = np.minimum(polygon_n2[:, axis] * outwards, edge * outwards)
            polygon_n2[:, axis] = inwards * outwards
    return polygon_n2


def enclosed_area(contour_n2: np.ndarray) -> float:
    """The enclosed area, for either direction."""
    x, y = contour_n2.T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def bridged(polygon_n2: np.ndarray, contour_n2: np.ndarray) -> np.ndarray:
    """Both as one polygon: from the closest point to the contour, around it, and back.

    Only every n-th point of a very long one is tried.
    """
    steps = [-(-len(points) // MAX_BRIDGE_POINTS) for points in (polygon_n2, contour_n2)]
    x, y = (polygon_n2[:: steps[0], None] - contour_n2[None, :: steps[1]]).transpose(2, 0, 1)
    start, end = divmod(int((x**2 + y**2).argmin()), x.shape[1])
    start, around = start * steps[0], np.roll(contour_n2, -end * steps[1], axis=0)
    return np.concatenate([polygon_n2[: start + 1], around, around[:1], polygon_n2[start:]])


def svg_path(mask: Rle) -> str:
    """The contours of a mask as the path of an SVG in pixels; empty for an empty mask.

    The mask is sampled within its bounds, not decoded, since a few characters can encode any size.
    Raises ValueError for invalid counts.
    """
    left, top, right, bottom = map(int, mask_bounds(mask))
    width, height = right - left, bottom - top
    columns, rows = min(SAMPLES, width), min(SAMPLES, height)
    x = left + ((np.arange(columns) + 0.5) * width / max(columns, 1)).astype(int)
    y = top + ((np.arange(rows) + 0.5) * height / max(rows, 1)).astype(int)
    runs = np.searchsorted(run_ends(mask), x * mask.size[0] + y[:, None], side="right")
    path = ""
    for contour_n2 in contours(runs % 2 == 1):
        points_n2 = (left, top) + contour_n2 * (width / columns, height / rows)
        path += f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in points_n2.tolist())}Z"
    return path
