"""Turns decoded pixels of any kind into upright 8-bit RGB or grey: alpha on white, range scaled."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageFile
from PIL.ExifTags import Base
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from pgcli.images.image_spec import ImageSpec, Size
from pgcli.images.layouts import GREYS_16, is_too_dark, unsupported

# Pillow's `exif_transpose` contains the same table, but raises for corrupt EXIF and transposes
# only the image that has the EXIF, not pixels made from it.
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
#: Pixels that are converted at a time, where a conversion allocates memory.
TILE_PIXELS = 2**22
#: A PNG with an orientation contains one of these.
PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")


def upright_8bit(image: Image.Image) -> Image.Image:
    """The decoded image in RGB or grey, with its EXIF orientation applied."""
    return transpose(to_8bit(image), exif_orientation(image))


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB; the same object if it is already RGB."""
    return image if image.mode == "RGB" else image.convert("RGB")


def to_8bit(image: Image.Image) -> Image.Image:
    """The decoded image in RGB or grey: alpha on white, 16-bit greys scaled to 8 bits.

    Conversions that take several times the image's memory are done tile by tile. Raises ImageError
    for integers and floats without a defined range.
    """
    if image.mode in GREYS_16 or (image.mode == "I" and image.format == "PPM"):
        return _tile_by_tile(image, "L", _to_greys(image))
    if image.mode[0] in "IF":
        raise unsupported(f"an image of 32-bit values (mode {image.mode})")
    if has_unused_alpha(image):
        return image.convert("RGB")
    if image.has_transparency_data:
        return _tile_by_tile(image, "RGB", _on_white)
    if image.mode == "1":
        return image.convert("L")  # RGB would take three times the memory
    return image if image.mode == "L" else to_rgb(image)


def has_unused_alpha(image: Image.Image) -> bool:
    """Whether alpha is 0 everywhere, in a format where it need not mean transparency."""
    is_bmp = image.format == "BMP" and image.mode == "RGBA"
    return is_bmp and image.getchannel("A").getextrema() == (0, 0)


def _on_white(image: Image.Image) -> Image.Image:
    rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def _to_greys(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """A function that converts tiles of an image of 16-bit values to greys."""
    transparent = image.info.get("transparency")
    if is_too_dark(image, max(np.asarray(tile).max() for _, tile in _tiles(image))):
        raise unsupported("a TIFF of 16 bits a sample, with values of 12 bits")

    def convert(tile: Image.Image) -> Image.Image:
        values = np.asarray(tile)
        greys = np.rint(values / np.float32(257)).astype(np.uint8)
        if transparent is not None:
            greys[values == transparent] = 255
        return Image.fromarray(greys)

    return convert


def _tile_by_tile(
    image: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]
) -> Image.Image:
    """The image in another mode, converted tile by tile."""
    if image.width * image.height <= TILE_PIXELS:
        return convert(image)
    result = Image.new(mode, image.size)
    for place, tile in _tiles(image):
        result.paste(convert(tile), place)
    return result


def _tiles(image: Image.Image) -> Iterator[tuple[tuple[int, int], Image.Image]]:
    """Tiles of at most TILE_PIXELS that cover the image, with the left and top of each."""
    width = min(image.width, TILE_PIXELS)
    height = TILE_PIXELS // width
    for top in range(0, image.height, height):
        for left in range(0, image.width, width):
            right, bottom = min(left + width, image.width), min(top + height, image.height)
            yield (left, top), image.crop((left, top, right, bottom))


def resize_draft(image: JpegImageFile, spec: ImageSpec) -> Image.Image:
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
    return to_rgb(spec.crop(transpose(resized, exif_orientation(image))))


def header_size(image: ImageFile.ImageFile) -> Size:
    """The upright size of an image before it is decoded, as far as the header states it."""
    # Pillow decodes a whole PNG in search of late EXIF, and applies a TIFF's orientation itself
    is_stated = image.format != "PNG" or "exif" in image.info
    is_sideways = is_stated and exif_orientation(image) in SIDEWAYS
    return Size(*(reversed(image.size) if is_sideways else image.size))


def is_rotated(image: ImageFile.ImageFile, data: bytes) -> bool:
    """Whether an image, opened from these bytes, is not stored upright."""
    return stored_orientation(image, data) in TRANSPOSE


def stored_orientation(image: ImageFile.ImageFile, data: bytes | None = None) -> int:
    """The EXIF orientation of the stored pixels, also for TIFF; 1 (upright) without any.

    A PNG's orientation after its pixels is found only with its `data`, by decoding it.
    """
    if isinstance(image, TiffImageFile):
        value = image.tag_v2.get(Base.Orientation)
        return value if value in TRANSPOSE else 1
    is_late = data is not None and any(name in data for name in PNG_EXIF)
    if image.format == "PNG" and not is_late and "exif" not in image.info:
        return 1
    value = exif_orientation(image)
    return value if value in TRANSPOSE else 1


def transpose(pixels: Image.Image, orientation: int) -> Image.Image:
    """The pixels of an image with this EXIF orientation, upright."""
    method = TRANSPOSE.get(orientation)
    return pixels if method is None else pixels.transpose(method)


def exif_orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 (upright) if it is missing or corrupt, and for TIFF."""
    if image.format == "TIFF":
        return 1
    try:
        value = image.getexif().get(Base.Orientation, 1)
    except (SyntaxError, ValueError, LookupError, TypeError, OSError, EOFError, struct.error):
        return 1
    return value if isinstance(value, int) else 1
