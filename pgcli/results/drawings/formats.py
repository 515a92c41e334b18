"""Saves an image in the file format that its original had, in high quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any

from PIL import Image, ImageFile

#: The suffixes of files of each format, the usual one first.
SUFFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
        "PNG": (".png",),
        "WEBP": (".webp",),
        "GIF": (".gif",),
        "BMP": (".bmp",),
        "TIFF": (".tif", ".tiff"),
        "AVIF": (".avif",),
        "PPM": (".ppm", ".pnm"),  # RGB, which .pgm and .pbm files are not
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
WITH_PROFILE = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")
FALLBACK = "PNG"


@dataclass(frozen=True)
class SavedFormat:
    """The format of an image file, and its colour profile if that is for RGB."""

    format: str
    profile: bytes | None = None

    @property
    def written_as(self) -> str:
        """The format, or FALLBACK if the installed Pillow cannot write it."""
        return self.format if can_write(self.format) else FALLBACK


def format_of(file: ImageFile.ImageFile) -> SavedFormat:
    """The format and profile of an opened image file."""
    profile = file.info.get("icc_profile")
    # decoded pixels are RGB, for which a grey or CMYK profile is wrong
    is_rgb = isinstance(profile, bytes) and profile[16:20] == b"RGB "
    return SavedFormat(file.format or FALLBACK, profile if is_rgb else None)


def save_image(image: Image.Image, original: SavedFormat) -> bytes:
    """The RGB image as a file in the original's format. Raises OSError or ValueError.

    Pillow may also save what the image's `info` holds; an image with an overlay has none.
    """
    options = dict(SAVE_OPTIONS.get(original.written_as, {}))
    if original.written_as in WITH_PROFILE:
        options["icc_profile"] = original.profile
    file = BytesIO()
    image.save(file, original.written_as, **options)
    return file.getvalue()


def can_write(name: str) -> bool:
    """Whether the installed Pillow can write the format."""
    Image.init()
    return name in Image.SAVE


def writable_suffixes() -> frozenset[str]:
    """The suffixes of the formats that can be written."""
    return frozenset(
        suffix for name, suffixes in SUFFIXES.items() if can_write(name) for suffix in suffixes
    )
