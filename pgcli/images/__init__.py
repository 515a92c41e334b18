"""Turn the bytes of a picture into the model's square, upright and RGB, or into a named fault."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile
from PIL.ImageOps import exif_transpose
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images import jpeg_draft
from pgcli.images.errors import Unreadable, too_many_pixels, unreadable_only
from pgcli.images.files import checked, read
from pgcli.images.formats import FORMATS, recognised
from pgcli.images.image_spec import ImageSpec, Limits, Size
from pgcli.images.pixels import header_size, is_turned, rgb, upright_rgb, upright_visible
from pgcli.records import DecodedImage, Item

__all__ = [
    "FORMATS",
    "ImageSpec",
    "Limits",
    "Size",
    "Unreadable",
    "decode",
    "file_header",
    "header",
    "reduced",
    "turned_as_stored",
    "upright",
]

#: What is read of a file first where only its header is wanted, and the formats that say all there
#: that they say in a header: others refer to any place of the file.
BEGINNING = 64 * 2**10
TOLD_EARLY = frozenset({"JPEG", "PNG", "GIF", "BMP", "PPM"})


class Opened(NamedTuple):
    """A picture whose header is read and within the limits: not decoded yet, and its bytes."""

    image: ImageFile.ImageFile
    size: Size
    data: bytes


def decode(item: Item, square: ImageSpec, limits: Limits) -> DecodedImage:
    """The item's picture in the model's square, or its fault: a broken file raises nothing."""
    started = perf_counter()
    size, pixels, fault = None, None, item.fault
    if fault is None:
        try:
            file = _opened(item.path if item.data is None else item.data, limits)
            size, image = _squared(file, square)
            pixels = np.array(image)
        except Unreadable as problem:
            size, fault = problem.size, problem.fault
    width, height = size or (None, None)
    load_ms = (perf_counter() - started) * 1000
    return DecodedImage(item, width, height, pixels, load_ms, fault)


def upright(source: str | bytes | None, limits: Limits) -> Image.Image:
    """The first frame of a file (its path) or of bytes, in RGB, turned as its EXIF says.

    Transparent pixels show white; 16-bit and float values are scaled, not clipped. Raises
    `Unreadable`, and nothing else, whatever is wrong with the picture.
    """
    image, size, data = _opened(source, limits)
    with unreadable_only(size, data):
        image.load()
        return upright_rgb(image)


def reduced(source: str | bytes | None, side: int, limits: Limits) -> tuple[Size, Image.Image]:
    """The same no larger than `side` on either side, and the size that the picture has upright.

    JPEGs are decoded no larger than it takes. Raises `Unreadable`, and nothing else.
    """
    image, size, data = _opened(source, limits)
    with unreadable_only(size, data):
        if isinstance(image, JpegImageFile):
            image.draft(None, (side, side))
        image.load()
        picture = upright_visible(image)
        picture.thumbnail((side, side), Image.Resampling.HAMMING, reducing_gap=3.0)
        return size, rgb(picture)


def turned_as_stored(data: bytes, limits: Limits) -> tuple[ImageFile.ImageFile, Image.Image] | None:
    """A picture that its EXIF turns, as it lies and turned, both with the pixels that are stored.

    None for one that is seen as it lies. Raises `Unreadable`, and nothing else.
    """
    with unreadable_only(data=data):
        if not is_turned(recognised(data), data):
            return None
        image = _opened(data, limits).image
        image.load()  # which turns TIFF
        return image, image.copy() if image.format == "TIFF" else exif_transpose(image)


def header(data: bytes) -> tuple[str, Size]:
    """A picture's format, and its size as its header tells it; PNGs may tell late that they lie on
    their side. Raises `Unreadable`, and nothing else.
    """
    with unreadable_only():
        image = recognised(data)
        return str(image.format), header_size(image)


def file_header(path: str, limits: Limits) -> tuple[str, Size]:
    """The same of a file, of which no more is read than it takes. Raises `Unreadable`."""
    try:
        format, size = header(read(path, limits, BEGINNING))
        if format in TOLD_EARLY:
            return format, size
    except Unreadable:
        pass  # the header may be longer
    return header(read(path, limits))


def _opened(source: str | bytes | None, limits: Limits) -> Opened:
    data = checked(source, limits) if isinstance(source, bytes | None) else read(source, limits)
    with unreadable_only():
        image = recognised(data)
        size = header_size(image)
    if size.width * size.height > limits.max_pixels:
        raise Unreadable(too_many_pixels(size, limits), size)
    return Opened(image, size, data)


def _squared(file: Opened, square: ImageSpec) -> tuple[Size, Image.Image]:
    """The upright size, and the picture in the square."""
    with unreadable_only(file.size, file.data):
        if square.fast_decode and isinstance(file.image, JpegImageFile):
            return file.size, jpeg_draft.squared(file.image, square)
        file.image.load()
        image = upright_visible(file.image)
        size = Size(*image.size)
    with unreadable_only(size):
        side = (square.resolution, square.resolution)
        # greys are resized as one channel instead of three, to the same values
        return size, rgb(image.resize(side, Image.Resampling(square.resample)))
