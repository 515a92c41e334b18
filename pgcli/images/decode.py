"""Decodes images: items to the model's pixels, or files as a person sees them, upright RGB."""

from __future__ import annotations

import ctypes
import logging
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from time import perf_counter

import numpy as np
from PIL import Image, ImageFile, _imaging
from PIL.ImageOps import exif_transpose
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images.errors import ImageError, wrap_image_errors
from pgcli.images.files import file_time, item_bytes, short_digest
from pgcli.images.formats import OpenedImage, identify_image, open_image
from pgcli.images.image_spec import MAX_RESIZED, ImageLimits, ImageSpec, Size
from pgcli.images.layouts import lacks_pixels
from pgcli.images.pixels import (
    exif_orientation,
    is_rotated,
    resize_draft,
    to_8bit,
    to_rgb,
    transpose,
)
from pgcli.records import DecodedImage, Item

_NULL_HANDLER = logging.NullHandler()
MAX_STRIP = 16_383  # pixels of a side, the most that WebP has


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes items to the model's pixels: `decode` and its settings."""

    spec: ImageSpec
    limits: ImageLimits = field(default_factory=ImageLimits)

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item; see `decode`."""
        return decode(item, self.spec, self.limits)

    def produces(self, shape: tuple[int, ...]) -> bool:
        """Whether this is the shape of the model's pixels."""
        return shape == (self.spec.resolution, self.spec.resolution, 3)


def decode(item: Item, spec: ImageSpec, limits: ImageLimits) -> DecodedImage:
    """The item's pixels at the model's resolution, or its fault. Raises nothing for a bad image."""
    started = perf_counter()
    size, pixels, fault, stamp = None, None, item.fault, None
    if fault is None:
        try:
            time_ns = None if item.path is None or item.data is not None else file_time(item.path)
            data = item_bytes(item, limits)
            opened = open_image(data, limits)
            size, image = _resize(opened, spec)
            pixels = np.array(image)
            if time_ns is not None and item.span is None:
                stamp = len(data), time_ns, short_digest(sha256(data).digest())
        except ImageError as problem:
            size, fault = problem.size, problem.fault
    width, height = size or (None, None)
    load_ms = (perf_counter() - started) * 1000
    return DecodedImage(item, width, height, pixels, load_ms, fault, stamp)


def _is_small(opened: OpenedImage, spec: ImageSpec) -> bool:
    """Whether the image may be resized as a whole before it is cropped."""
    size = spec.resized(*opened.image.size)
    return size.width * size.height <= MAX_RESIZED


def _resize(opened: OpenedImage, spec: ImageSpec) -> tuple[Size, Image.Image]:
    """The upright size, and the image at the model's resolution."""
    with wrap_image_errors(opened.size, opened.data):
        if spec.fast_decode and isinstance(opened.image, JpegImageFile) and _is_small(opened, spec):
            return opened.size, resize_draft(opened.image, spec)
        image = _upright_pixels(opened.image)
        size = Size(*image.size)
    with wrap_image_errors(size):
        # grey images are resized as one channel instead of three, to the same values
        return size, to_rgb(spec.resize(image))


def _upright_pixels(image: ImageFile.ImageFile) -> Image.Image:
    """The upright 8-bit pixels of an opened image; everything else that it held is released.

    Raises any exception for a damaged image.
    """
    file = image.fp
    image.load()
    if isinstance(file, BytesIO) and image.format == "PNG":
        last_rows = image.crop((0, max(image.height - 2, 0), image.width, image.height))
        if not all(map(np.any, np.asarray(last_rows))) and lacks_pixels(file.getvalue()):
            raise EOFError
    image.fp = None
    vars(image).pop("_decoder", None)  # for WebP and AVIF, two or three times the pixels
    orientation = exif_orientation(image)
    pixels = to_8bit(image)
    if pixels is not image:
        image.close()
    return transpose(pixels, orientation)


def load_image(source: str | bytes | None, limits: ImageLimits) -> Image.Image:
    """The first frame of a file (its path) or of bytes, in RGB, with its EXIF orientation applied.

    Transparent pixels become white; 16-bit and float values are scaled, not clipped. Raises
    ImageError, and nothing else, whatever is wrong with the image.
    """
    image, size, data = open_image(source, limits)
    with wrap_image_errors(size, data):
        return to_rgb(_upright_pixels(image))


def load_thumbnail(
    source: str | bytes | None,
    side: int,
    limits: ImageLimits,
    *,
    root: str | None = None,
    slack: float = 1.0,
) -> tuple[Size, Image.Image]:
    """The upright size, and `load_image` scaled down to at most `side` pixels on either side.

    Strips, which are four times as long as wide, may be four times as long, so that they remain
    legible. JPEGs are decoded at a reduced size, which is kept if it is at most `slack` times as
    large: scaling takes as long as decoding. The file must be in the `root`. Raises ImageError, and
    nothing else.
    """
    image, size, data = open_image(source, limits, root)
    with wrap_image_errors(size, data):
        side = min(4 * side, MAX_STRIP) if max(size) > 4 * min(size) else side
        if isinstance(image, JpegImageFile):
            scale = side / max(image.size)
            width, height = (max(1, int(length * scale)) for length in image.size)
            image.draft(None, (width, height))
        thumbnail = _upright_pixels(image)
        if max(thumbnail.size) > side * slack:
            thumbnail.thumbnail((side, side), Image.Resampling.HAMMING, reducing_gap=3.0)
        return size, to_rgb(thumbnail)


def stored_and_upright(
    data: bytes, limits: ImageLimits
) -> tuple[ImageFile.ImageFile, Image.Image] | None:
    """An image as stored and with its EXIF orientation applied.

    Both have the stored pixel format, except TIFFs that Pillow cannot write with the same meaning.
    None for an image that is stored upright. Raises ImageError, and nothing else.
    """
    with wrap_image_errors(data=data):
        if not is_rotated(identify_image(data), data):
            return None
        image = open_image(data, limits).image
        image.load()  # this applies a TIFF's orientation
        if image.format == "TIFF":
            return image, to_8bit(image) if image.mode == "La" else image.copy()
        return image, exif_transpose(image)


def silence_decoders() -> None:
    """Silence Pillow's and libtiff's messages about damaged files, for the rest of this process.

    These go to stderr by default: warnings from Pillow's own modules, its log if the program has
    configured none, and libtiff's messages. The item's fault has the reason.
    """
    # Permanently: `warnings.catch_warnings` and a redirected stderr would affect other threads,
    # such as the one that draws the progress bar.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    logging.getLogger("PIL").addHandler(_NULL_HANDLER)
    with suppress(OSError, AttributeError):  # a Pillow without libtiff's symbols
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)
