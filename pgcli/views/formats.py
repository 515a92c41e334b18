"""A picture written as the file it came from was: the same format, in high quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any

from PIL import Image, ImageFile

#: How pictures of each format are named and written: so that lines and letters stay crisp.
ENDINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
        "PNG": (".png",),
        "WEBP": (".webp",),
        "GIF": (".gif",),
        "BMP": (".bmp",),
        "TIFF": (".tif", ".tiff"),
        "AVIF": (".avif",),
        "PPM": (".ppm", ".pnm"),  # in colours, which .pgm and .pbm do not hold
    }
)
OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "JPEG": {"quality": 95, "subsampling": 0},
        "PNG": {"compress_level": 4},  # a third of the time of 6, and a few percent larger
        "WEBP": {"lossless": True, "quality": 20, "method": 0},  # lossy, it smears thin lines
        "TIFF": {"compression": "tiff_lzw"},
        "AVIF": {"quality": 90, "speed": 8, "subsampling": "4:4:4"},
    }
)
WITH_PROFILE = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")
FALLBACK = "PNG"


@dataclass(frozen=True)
class Original:
    """What of a file outlives painting: its format, and its colour profile if that is for RGB."""

    format: str
    profile: bytes | None = None

    @property
    def written_as(self) -> str:
        """The same format, or FALLBACK where the installed Pillow does not write it."""
        return self.format if writes(self.format) else FALLBACK


def original_of(file: ImageFile.ImageFile) -> Original:
    """What to keep of a picture whose header was read."""
    profile = file.info.get("icc_profile")
    # pixels are RGB by now, which a profile of greys or inks would misread
    is_rgb = isinstance(profile, bytes) and profile[16:20] == b"RGB "
    return Original(file.format or FALLBACK, profile if is_rgb else None)


def encoded(picture: Image.Image, original: Original) -> bytes:
    """The RGB picture as a file like the original. Raises OSError or ValueError where it cannot be.

    What the picture's `info` holds, Pillow may write as well: a painted picture has none.
    """
    options = dict(OPTIONS.get(original.written_as, {}))
    if original.written_as in WITH_PROFILE:
        options["icc_profile"] = original.profile
    file = BytesIO()
    picture.save(file, original.written_as, **options)
    return file.getvalue()


def writes(name: str) -> bool:
    """Whether the installed Pillow can write the format."""
    Image.init()
    return name in Image.SAVE


def writable_endings() -> frozenset[str]:
    """The endings of files that can be written under their own name."""
    return frozenset(e for name, endings in ENDINGS.items() if writes(name) for e in endings)
