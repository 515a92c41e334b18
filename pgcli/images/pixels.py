"""Turn decoded pixels of any kind into upright 8-bit RGB, alpha on white and range scaled."""

from __future__ import annotations

import struct

import numpy as np
from PIL import Image, ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from pgcli.images.image_spec import Size

ORIENTATION = 0x0112  # the EXIF tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
#: A PNG that knows how it lies has one of these in it, as plain bytes.
PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")


def header_size(image: ImageFile.ImageFile) -> Size:
    """The upright size of a picture not decoded yet, as far as its header tells."""
    # Pillow decodes a whole PNG in search of EXIF that comes late, and turns TIFF by itself
    told = image.format != "PNG" or "exif" in image.info
    sideways = told and _orientation(image) in SIDEWAYS
    return Size(*(reversed(image.size) if sideways else image.size))


def has_orientation(image: ImageFile.ImageFile, data: bytes) -> bool:
    """Whether a picture, its header read from these bytes, is stored otherwise than it is seen."""
    if isinstance(image, TiffImageFile):
        return image.tag_v2.get(ORIENTATION) in TURNS
    told = image.format != "PNG" or any(name in data for name in PNG_EXIF)
    return told and _orientation(image) in TURNS


def upright_rgb(image: ImageFile.ImageFile) -> Image.Image:
    """The decoded picture as the eye sees it: RGB, turned as its EXIF says."""
    return to_rgb(upright_visible(image))


def upright_visible(image: ImageFile.ImageFile) -> Image.Image:
    """The same, but greys stay one channel."""
    return apply_orientation(to_8bit(image), image)


def apply_orientation(pixels: Image.Image, image: ImageFile.ImageFile) -> Image.Image:
    """The pixels, turned as the EXIF of the image that they were made of says."""
    turn = TURNS.get(_orientation(image))
    return pixels if turn is None else pixels.transpose(turn)


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture in RGB, itself where it is."""
    return image if image.mode == "RGB" else image.convert("RGB")


def _orientation(image: ImageFile.ImageFile) -> int:
    """The EXIF orientation, 1 (upright) where there is none, where it is corrupt, and for TIFF."""
    if image.format == "TIFF":
        return 1
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except (SyntaxError, ValueError, LookupError, TypeError, OSError, EOFError, struct.error):
        return 1
    return value if isinstance(value, int) else 1


def to_8bit(image: Image.Image) -> Image.Image:
    """The decoded picture's colours, RGB or one channel of greys: alpha on white, range scaled."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_scaled(image))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode == "1":
        return image.convert("L")  # of such a picture few bytes hold all the pixels allowed
    return image if image.mode == "L" else to_rgb(image)


def _scaled(image: Image.Image) -> np.ndarray:
    """The 8-bit greys of a picture of 16-bit, 32-bit or float values."""
    values = np.asarray(image)
    if image.mode == "F":
        return _scaled_floats(values)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 0xFFFF:
        return _stretched(values, low, high)
    greys = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 255 * 257
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        greys[values == transparent] = 255
    return greys


def _scaled_floats(values: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    # NaN becomes what is scaled to 0, infinities the ends of the range
    return _stretched(np.nan_to_num(values, nan=low, posinf=high, neginf=low), low, high)


def _stretched(values: np.ndarray, low: float, high: float) -> np.ndarray:
    scale = 255 / (high - low) if high > low else 0.0
    return np.rint((values.astype(np.float64) - low) * scale).astype(np.uint8)
