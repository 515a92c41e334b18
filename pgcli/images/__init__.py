"""Turn the bytes of a picture into the model's square, upright and RGB, or into a named fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile
from PIL.ImageOps import exif_transpose
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images import jpeg_draft
from pgcli.images.errors import ImageError, too_many_pixels, wrap_image_errors
from pgcli.images.files import checked_bytes, read_file
from pgcli.images.formats import FORMATS, open_image
from pgcli.images.image_spec import ImageLimits, ImageSpec, Size
from pgcli.images.pixels import has_orientation, header_size, to_rgb, upright_rgb, upright_visible
from pgcli.records import DecodedImage, Item

__all__ = [
    "FORMATS",
    "ImageDecoder",
    "ImageError",
    "ImageLimits",
    "ImageSpec",
    "Size",
    "decode",
    "load_image",
    "load_thumbnail",
    "read_file_header",
    "read_header",
    "stored_and_upright",
]

#: What is read of a file first where only its header is wanted, and the formats that say all there
#: that they say in a header: others refer to any place of the file.
BEGINNING = 64 * 2**10
TOLD_EARLY = frozenset({"JPEG", "PNG", "GIF", "BMP", "PPM"})


class OpenedImage(NamedTuple):
    """A picture whose header is read and within the limits: not decoded yet, and its bytes."""

    image: ImageFile.ImageFile
    size: Size
    data: bytes


def decode(item: Item, spec: ImageSpec, limits: ImageLimits) -> DecodedImage:
    """The item's picture in the model's square, or its fault: a broken file raises nothing."""
    started = perf_counter()
    size, pixels, fault = None, None, item.fault
    if fault is None:
        try:
            file = _opened(item.path if item.data is None else item.data, limits)
            size, image = _squared(file, spec)
            pixels = np.array(image)
        except ImageError as problem:
            size, fault = problem.size, problem.fault
    width, height = size or (None, None)
    load_ms = (perf_counter() - started) * 1000
    return DecodedImage(item, width, height, pixels, load_ms, fault)


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes items to the model's pixels: `decode` with its settings."""

    spec: ImageSpec
    limits: ImageLimits = field(default_factory=ImageLimits)

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item; see `decode`."""
        return decode(item, self.spec, self.limits)


def load_image(source: str | bytes | None, limits: ImageLimits) -> Image.Image:
    """The first frame of a file (its path) or of bytes, in RGB, turned as its EXIF says.

    Transparent pixels show white; 16-bit and float values are scaled, not clipped. Raises
    `ImageError`, and nothing else, whatever is wrong with the picture.
    """
    image, size, data = _opened(source, limits)
    with wrap_image_errors(size, data):
        image.load()
        return upright_rgb(image)


def load_thumbnail(
    source: str | bytes | None, side: int, limits: ImageLimits
) -> tuple[Size, Image.Image]:
    """The same no larger than `side` on either side, and the size that the picture has upright.

    JPEGs are decoded no larger than it takes. Raises `ImageError`, and nothing else.
    """
    image, size, data = _opened(source, limits)
    with wrap_image_errors(size, data):
        if isinstance(image, JpegImageFile):
            image.draft(None, (side, side))
        image.load()
        picture = upright_visible(image)
        picture.thumbnail((side, side), Image.Resampling.HAMMING, reducing_gap=3.0)
        return size, to_rgb(picture)


def stored_and_upright(
    data: bytes, limits: ImageLimits
) -> tuple[ImageFile.ImageFile, Image.Image] | None:
    """A picture that its EXIF turns, as it lies and turned, both with the pixels that are stored.

    None for one that is seen as it lies. Raises `ImageError`, and nothing else.
    """
    with wrap_image_errors(data=data):
        if not has_orientation(open_image(data), data):
            return None
        image = _opened(data, limits).image
        image.load()  # which turns TIFF
        return image, image.copy() if image.format == "TIFF" else exif_transpose(image)


def read_header(data: bytes) -> tuple[str, Size]:
    """A picture's format, and its size as its header tells it; PNGs may tell late that they lie on
    their side. Raises `ImageError`, and nothing else.
    """
    with wrap_image_errors():
        image = open_image(data)
        return str(image.format), header_size(image)


def read_file_header(path: str, limits: ImageLimits) -> tuple[str, Size]:
    """The same of a file, of which no more is read than it takes. Raises `ImageError`."""
    try:
        format, size = read_header(read_file(path, limits, BEGINNING))
        if format in TOLD_EARLY:
            return format, size
    except ImageError:
        pass  # the header may be longer
    return read_header(read_file(path, limits))


def _opened(source: str | bytes | None, limits: ImageLimits) -> OpenedImage:
    data = (
        checked_bytes(source, limits)
        if isinstance(source, bytes | None)
        else read_file(source, limits)
    )
    with wrap_image_errors():
        image = open_image(data)
        size = header_size(image)
    if size.width * size.height > limits.max_pixels:
        raise ImageError(too_many_pixels(size, limits), size)
    return OpenedImage(image, size, data)


def _squared(file: OpenedImage, spec: ImageSpec) -> tuple[Size, Image.Image]:
    """The upright size, and the picture in the square."""
    with wrap_image_errors(file.size, file.data):
        if spec.fast_decode and isinstance(file.image, JpegImageFile):
            return file.size, jpeg_draft.squared(file.image, spec)
        file.image.load()
        image = upright_visible(file.image)
        size = Size(*image.size)
    with wrap_image_errors(size):
        side = (spec.resolution, spec.resolution)
        # greys are resized as one channel instead of three, to the same values
        return size, to_rgb(image.resize(side, Image.Resampling(spec.resample)))
