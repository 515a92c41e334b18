"""Decodes images: items to the model's pixels, or files as a person sees them, upright RGB."""

from __future__ import annotations

import ctypes
import logging
import struct
import warnings
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image, ImageFile, _imaging
from PIL.ImageOps import exif_transpose
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.errors import UsageError
from pgcli.images.files import (
    ImageError,
    ImageLimits,
    Size,
    checked_bytes,
    file_time,
    item_bytes,
    short_digest,
    unsupported,
    wrap_image_errors,
)
from pgcli.images.formats import (
    GREYS_16,
    TRANSPOSE,
    OpenedImage,
    exif_orientation,
    open_image,
    read_header,
)
from pgcli.records import DecodedImage, Fault, Item

#: Pixels of an image before its crop.
MAX_RESIZED = 2**25


@dataclass(frozen=True)
class ImageSpec:
    """The model's input: pixels per side, and Pillow's resampling filter (3: bicubic).

    With `fast_decode`, JPEGs are decoded at a reduced size, which changes pixels. Images are
    resized to squares; or to `resize_to` pixels per side, then centre-cropped. With `keeps_aspect`
    only the shorter side has `resize_to` pixels.
    """

    resolution: int
    resample: int = 3
    fast_decode: bool = False
    resize_to: int | None = None
    keeps_aspect: bool = False

    def resized(self, width: int, height: int) -> Size:
        """The size to which an image of this size is resized, before the crop."""
        side = self.resize_to or self.resolution
        if not self.keeps_aspect:
            return Size(side, side)
        if width <= height:
            return Size(side, int(side * height / width))
        return Size(int(side * width / height), side)

    def resize(self, image: Image.Image) -> Image.Image:
        """The image at the model's resolution."""
        size = self.resized(*image.size)
        if size.width * size.height <= MAX_RESIZED:
            return self.crop(image.resize(size, self.resample))
        # resizing an extremely elongated image would take gigabytes
        scale_x, scale_y = image.width / size.width, image.height / size.height
        left, top, right, bottom = self._centre(size)
        box = (left * scale_x, top * scale_y, right * scale_x, bottom * scale_y)
        return image.resize((self.resolution, self.resolution), self.resample, box)

    def crop(self, image: Image.Image) -> Image.Image:
        """The centre crop of a resized image, at the model's resolution."""
        if image.size == (self.resolution, self.resolution):
            return image
        return image.crop(self._centre(Size(*image.size)))

    def _centre(self, size: Size) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the crop of an image of this size."""
        left, top = ((side - self.resolution) // 2 for side in size)
        return left, top, left + self.resolution, top + self.resolution


MAX_SENSOR_VALUE = 4095
PNG_START, SIZE_AT, DEPTH_AT, COLOURS_AT, INTERLACING_AT = 8, 16, 24, 25, 28
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
INFLATED_BYTES = 2**20


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes items to the model's pixels: `decode` and its settings."""

    spec: ImageSpec
    limits: ImageLimits = field(default_factory=ImageLimits)

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item; see `decode`."""
        return decode(item, self.spec, self.limits)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the model's pixels."""
        return self.spec.resolution, self.spec.resolution, 3


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


def _resize(opened: OpenedImage, spec: ImageSpec) -> tuple[Size, Image.Image]:
    """The upright size, and the image at the model's resolution."""
    with wrap_image_errors(opened.size, opened.data):
        resized = spec.resized(*opened.image.size)
        is_small = resized.width * resized.height <= MAX_RESIZED  # resized before it is cropped
        if spec.fast_decode and isinstance(opened.image, JpegImageFile) and is_small:
            return opened.size, _resize_draft(opened.image, spec)
        image = _upright_pixels(opened)
        size = Size(*image.size)
    with wrap_image_errors(size):
        # grey images are resized as one channel instead of three, to the same values
        return size, _to_rgb(spec.resize(image))


def _resize_draft(image: JpegImageFile, spec: ImageSpec) -> Image.Image:
    """The image at the model's resolution, decoded at 1/2, 1/4 or 1/8 of its size if possible.

    Each decoded side has at least twice the model's pixels. libjpeg drops the finest frequencies
    of every block; resizing to half removes most of them anyway, except at sharp edges.
    A JPEG below four times the model's resolution is decoded in full; it differs only by rounding,
    and only if it is rotated, because it is rotated after resizing.
    """
    size = spec.resized(*image.size)
    draft = image.draft(None, (2 * size.width, 2 * size.height))
    image.load()
    # the last decoded pixels may lie half outside the image: the box says how much of them counts
    box = None if draft is None else draft[1]
    resized = to_8bit(image).resize(size, Image.Resampling(spec.resample), box)
    return _to_rgb(spec.crop(_transpose(resized, exif_orientation(image))))


def _upright_pixels(opened: OpenedImage) -> Image.Image:
    """The upright 8-bit pixels of an opened image; everything else that it held is released.

    Raises any exception for a damaged image.
    """
    image, stated = opened.image, opened.image.info.get("transparency")
    image.load()
    if image.format == "PNG":
        last_rows = image.crop((0, max(image.height - 2, 0), image.width, image.height))
        if not all(map(np.any, np.asarray(last_rows))) and _lacks_pixels(opened.data):
            raise EOFError
        if image.info.get("transparency") != stated:
            raise unsupported("a PNG with a transparent colour after its pixels")
    image.fp = None
    vars(image).pop("_decoder", None)  # for WebP and AVIF, two or three times the pixels
    pixels = upright_8bit(image)
    if pixels is not image:
        image.close()
    return pixels


def _lacks_pixels(data: bytes) -> bool:
    """Whether the pixels of a PNG end early; Pillow leaves the rest 0 without an error."""
    width, height = struct.unpack_from(">II", data, SIZE_AT)
    bits = data[DEPTH_AT] * CHANNELS[data[COLOURS_AT]]
    total: int = width * height * bits // 8
    if not data[INTERLACING_AT]:
        total = height * (1 + -(-width * bits // 8))
    bodies, start = list[bytes](), PNG_START
    while start + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, start)
        if kind == b"IDAT":
            bodies.append(data[start + 8 : start + 8 + size])
        start += size + 12
    unpacker, packed, inflated = zlib.decompressobj(), b"".join(bodies), 0
    try:
        while packed and inflated < total:
            inflated += len(unpacker.decompress(packed, INFLATED_BYTES))
            packed = unpacker.unconsumed_tail
    except zlib.error:
        pass
    return inflated < total


def upright_8bit(image: Image.Image) -> Image.Image:
    """The decoded image in RGB or grey, with its EXIF orientation applied."""
    orientation = 1 if image.format == "TIFF" else exif_orientation(image)  # Pillow turns TIFFs
    return _transpose(to_8bit(image), orientation)


def _transpose(pixels: Image.Image, orientation: int) -> Image.Image:
    method = TRANSPOSE.get(orientation)
    return pixels if method is None else pixels.transpose(method)


def _to_rgb(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else image.convert("RGB")


def to_8bit(image: Image.Image) -> Image.Image:
    """The decoded image in RGB or grey: alpha on white, 16-bit greys scaled to 8 bits.

    Raises ImageError for integers and floats without a defined range.
    """
    if image.mode in GREYS_16 or (image.mode == "I" and image.format == "PPM"):
        return _scaled_greys(image)
    if image.mode[0] in "IF":
        raise unsupported(f"an image of 32-bit values (mode {image.mode})")
    is_bmp = image.format == "BMP" and image.mode == "RGBA"
    if is_bmp and image.getchannel("A").getextrema() == (0, 0):
        return image.convert("RGB")
    if image.has_transparency_data:
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode == "1":
        return image.convert("L")  # RGB would take three times the memory
    return image if image.mode == "L" else _to_rgb(image)


def _scaled_greys(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.format == "TIFF" and 0 < values.max() <= MAX_SENSOR_VALUE:  # would be shown as black
        raise unsupported("a TIFF of 16 bits a sample, with values of 12 bits")
    greys = np.rint(values / np.float32(257)).astype(np.uint8)
    transparent = image.info.get("transparency")
    if transparent is not None:
        greys[values == transparent] = 255
    return Image.fromarray(greys)


def load_image(source: str | bytes | None, limits: ImageLimits) -> Image.Image:
    """The first frame of a file (its path) or of bytes, in RGB, with its EXIF orientation applied.

    Transparent pixels become white; 16-bit and float values are scaled, not clipped. Raises
    ImageError, and nothing else, whatever is wrong with the image.
    """
    opened = open_image(source, limits)
    with wrap_image_errors(opened.size, opened.data):
        return _to_rgb(_upright_pixels(opened))


def load_thumbnail(
    source: str | bytes | None,
    side: int,
    limits: ImageLimits,
    *,
    root: str | None = None,
) -> tuple[Size, Image.Image]:
    """The upright size, and `load_image` scaled down to at most `side` pixels on either side.

    JPEGs are decoded at a reduced size. The file must be in the `root`. Raises ImageError, and
    nothing else.
    """
    opened = open_image(source, limits, root)
    image, size, data = opened
    with wrap_image_errors(size, data):
        if isinstance(image, JpegImageFile):
            scale = side / max(image.size)
            width, height = (max(1, int(length * scale)) for length in image.size)
            image.draft(None, (width, height))
        thumbnail = _upright_pixels(opened)
        if max(thumbnail.size) > side:
            thumbnail.thumbnail((side, side), Image.Resampling.HAMMING, reducing_gap=3.0)
        return size, _to_rgb(thumbnail)


def stored_and_upright(
    data: bytes, limits: ImageLimits
) -> tuple[ImageFile.ImageFile, Image.Image] | None:
    """An image as stored and with its EXIF orientation applied.

    Both have the stored pixel format, except TIFFs that Pillow cannot write with the same meaning.
    None for an image that is stored upright. Raises ImageError, and nothing else.
    """
    if read_header(data).orientation == 1:
        return None
    with wrap_image_errors(data=data):
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
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    with suppress(OSError, AttributeError):  # a Pillow without libtiff's symbols
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


ARRAY_CHANNELS = (1, 3, 4)
CLOSED = Fault("decode_failed", "The image is closed: load it before its file is closed.")
NO_PIXELS = Fault("decode_failed", "The image has no pixels: its width or height is 0.")


def is_array(source: object) -> bool:
    """Whether the value is a NumPy array or a PyTorch tensor."""
    return hasattr(source, "shape") and hasattr(source, "dtype")


def check_array(array: Any) -> None:
    """Raise UsageError unless the array has the shape and type of an image."""
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise UsageError(
            f"an array of {dtype} is not an image", hint="convert it to uint8, from 0 to 255"
        )
    shape = tuple(array.shape)
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] in ARRAY_CHANNELS)):
        raise UsageError(
            f"an array of shape {shape} is not an image",
            hint="the shape must be (height, width, 3); permute(1, 2, 0) puts the channels last",
        )


def encode_image(image: Image.Image) -> bytes:
    """The image, upright and in 8 bits, as an uncompressed file. Raises ImageError."""
    with wrap_image_errors():
        try:
            image.load()
        except (AssertionError, ValueError) as problem:
            file = getattr(image, "fp", None)
            if file is None or getattr(file, "closed", False):
                raise ImageError(CLOSED) from problem
            raise
        if 0 in image.size:
            raise ImageError(NO_PIXELS)
        stream = BytesIO()
        upright_8bit(image).save(stream, "PPM")
        return stream.getvalue()


def file_bytes(source: Any) -> bytes:
    """The bytes of an image file with this content. Raises ImageError."""
    if isinstance(source, Image.Image):
        return encode_image(source)
    if is_array(source):
        pixels = np.asarray(source.detach().cpu() if hasattr(source, "detach") else source)
        is_grey = pixels.shape[2:] == (1,)
        return encode_image(Image.fromarray(pixels[:, :, 0] if is_grey else pixels))
    # not `read`: the position of a stream that was just written is its end
    try:
        data = source.getvalue() if isinstance(source, BytesIO) else bytes(source)
    except ValueError as problem:
        raise ImageError(CLOSED) from problem
    return checked_bytes(data, ImageLimits())
