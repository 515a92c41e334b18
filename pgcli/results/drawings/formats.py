"""The file formats that pgcli writes images in, in high quality."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any

from PIL import Image, ImageFile

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
