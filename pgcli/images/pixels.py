"""Converts decoded pixels of any kind to 8-bit RGB or grey: alpha on white, range scaled."""

from __future__ import annotations

import numpy as np
from PIL import Image

from pgcli.images.orientation import apply_orientation


def upright_8bit(image: Image.Image) -> Image.Image:
    """The decoded image in RGB or one grey channel, with its EXIF orientation applied."""
    return apply_orientation(to_8bit(image), image)


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB; the same object if it is RGB already."""
    return image if image.mode == "RGB" else image.convert("RGB")


def to_8bit(image: Image.Image) -> Image.Image:
    """The decoded image in RGB or one grey channel: alpha on white, range scaled to 8 bits."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_scale(image))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode == "1":
        return image.convert("L")  # RGB would take three times the memory
    return image if image.mode == "L" else to_rgb(image)


def _scale(image: Image.Image) -> np.ndarray:
    """8-bit greys of an image of 16-bit, 32-bit or float values."""
    values = np.asarray(image)
    if image.mode == "F":
        return _scale_floats(values)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 0xFFFF:
        return _stretch(values, low, high)
    greys = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 255 * 257
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        greys[values == transparent] = 255
    return greys


def _scale_floats(values: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    # NaN becomes the value that is scaled to 0, infinities the ends of the range
    return _stretch(np.nan_to_num(values, nan=low, posinf=high, neginf=low), low, high)


def _stretch(values: np.ndarray, low: float, high: float) -> np.ndarray:
    scale = 255 / (high - low) if high > low else 0.0
    return np.rint((values.astype(np.float64) - low) * scale).astype(np.uint8)
