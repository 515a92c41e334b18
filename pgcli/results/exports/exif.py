"""Applies EXIF orientation to image files, for tools that ignore it."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from pgcli.images import ImageLimits, stored_and_upright
from pgcli.images.errors import wrap_image_errors
from pgcli.results.drawings.formats import SAVE_OPTIONS, can_write

SUBSAMPLING_420 = 2  # symmetric, so that rotation loses no colour resolution


def upright_file(data: bytes) -> bytes | None:
    """The image rotated by its EXIF orientation, in its format; None if it is upright already.

    JPEG and AVIF are re-encoded in high quality; others keep every pixel. Raises `ImageError`.
    """
    found = stored_and_upright(data, ImageLimits())
    if found is None or not can_write(str(found[0].format)):
        return None
    stored, upright = found
    file = BytesIO()
    with wrap_image_errors():
        upright.save(file, str(stored.format), **save_options(stored, upright))
    return file.getvalue()


def save_options(stored: ImageFile.ImageFile, upright: Image.Image) -> dict[str, Any]:
    """Options that save the rotated image with the stored one's colour profile and EXIF."""
    options = dict(SAVE_OPTIONS.get(str(stored.format), {}))
    if isinstance(stored, JpegImageFile) and get_sampling(stored) == SUBSAMPLING_420:
        options["subsampling"] = SUBSAMPLING_420
    names = ("icc_profile",) if stored.format == "TIFF" else ("icc_profile", "exif")
    return options | {name: upright.info[name] for name in names if upright.info.get(name)}
