"""Turn the bytes of a picture into the model's square, upright and RGB, or into a named fault."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from PIL import Image

from pgcli.images.faults import Unreadable, too_many_pixels, unreadable_only
from pgcli.images.files import checked, read
from pgcli.images.formats import FORMATS, recognised
from pgcli.images.pixels import header_size, upright_rgb
from pgcli.images.sizes import Limits, Size, Square
from pgcli.records import Item, Picture

__all__ = ["FORMATS", "Limits", "Size", "Square", "Unreadable", "look", "upright"]


def look(item: Item, square: Square, limits: Limits) -> Picture:
    """The item's picture in the model's square, or its fault: a broken file raises nothing."""
    started = perf_counter()
    size, pixels, fault = None, None, item.fault
    if fault is None:
        try:
            image = upright(item.data if item.path is None else item.path, limits)
            size = Size(*image.size)
            with unreadable_only(size):
                pixels = _squared(image, square)
        except Unreadable as problem:
            size, fault = problem.size, problem.fault
    width, height = size or (None, None)
    load_ms = (perf_counter() - started) * 1000
    return Picture(item, width, height, pixels, load_ms, fault)


def upright(source: str | bytes | None, limits: Limits) -> Image.Image:
    """The first frame of a file (its path) or of bytes, in RGB, turned as its EXIF says.

    Transparent pixels show white; 16-bit and float values are scaled, not clipped. Raises
    `Unreadable`, and nothing else, whatever is wrong with the picture.
    """
    data = checked(source, limits) if isinstance(source, bytes | None) else read(source, limits)
    with unreadable_only():
        image = recognised(data)
        size = header_size(image)
    if size.width * size.height > limits.max_pixels:
        raise Unreadable(too_many_pixels(size, limits), size)
    with unreadable_only(size, data):
        image.load()
        return upright_rgb(image)


def _squared(image: Image.Image, square: Square) -> np.ndarray:
    side = square.resolution
    return np.array(image.resize((side, side), Image.Resampling(square.resample)))
