"""EXIF orientation: how an image is rotated or mirrored between file and screen."""

from __future__ import annotations

import struct

from PIL import Image, ImageFile
from PIL.ExifTags import Base
from PIL.TiffImagePlugin import TiffImageFile

from pgcli.images.image_spec import Size

# Pillow's `exif_transpose` has the same table inside, but raises for corrupt EXIF and can only
# transpose the image that has the EXIF, not pixels that were made of it.
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
#: A PNG with an orientation has one of these in its bytes.
PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")


def header_size(image: ImageFile.ImageFile) -> Size:
    """The upright size of an image that is not decoded yet, as far as its header states it."""
    # Pillow decodes a whole PNG in search of late EXIF, and applies TIFF orientation by itself
    is_stated = image.format != "PNG" or "exif" in image.info
    is_sideways = is_stated and exif_orientation(image) in SIDEWAYS
    return Size(*(reversed(image.size) if is_sideways else image.size))


def is_rotated(image: ImageFile.ImageFile, data: bytes) -> bool:
    """Whether an image, opened from these bytes, is not stored upright."""
    if isinstance(image, TiffImageFile):
        return image.tag_v2.get(Base.Orientation) in TRANSPOSE
    is_stated = image.format != "PNG" or any(name in data for name in PNG_EXIF)
    return is_stated and exif_orientation(image) in TRANSPOSE


def apply_orientation(pixels: Image.Image, image: Image.Image) -> Image.Image:
    """The pixels, transposed as the EXIF of the image that they were made of says."""
    transpose = TRANSPOSE.get(exif_orientation(image))
    return pixels if transpose is None else pixels.transpose(transpose)


def exif_orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 (upright) if it is missing or corrupt, and for TIFF."""
    if image.format == "TIFF":
        return 1
    try:
        value = image.getexif().get(Base.Orientation, 1)
    except (SyntaxError, ValueError, LookupError, TypeError, OSError, EOFError, struct.error):
        return 1
    return value if isinstance(value, int) else 1
