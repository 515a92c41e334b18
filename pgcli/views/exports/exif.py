"""Pictures whose pixels lie as they are seen, for tools that do not ask EXIF how to turn them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from pgcli.images import ImageLimits, stored_and_upright
from pgcli.images.errors import wrap_image_errors
from pgcli.views.formats import OPTIONS, writes

COARSE = 2  # colours at half of a JPEG's width and height, which no turn makes coarser


def upright_file(data: bytes) -> bytes | None:
    """The picture turned as its EXIF says, in the same format; None where nothing is to be turned.

    JPEG and AVIF are encoded anew, in high quality; others keep every pixel. Raises `ImageError`.
    """
    found = stored_and_upright(data, ImageLimits())
    if found is None or not writes(str(found[0].format)):
        return None
    image, picture = found
    file = BytesIO()
    with wrap_image_errors():
        picture.save(file, str(image.format), **options(image, picture))
    return file.getvalue()


def options(image: ImageFile.ImageFile, picture: Image.Image) -> dict[str, Any]:
    """How the turned picture is written: with the profile and the EXIF of the one that it is of."""
    made = dict(OPTIONS.get(str(image.format), {}))
    if isinstance(image, JpegImageFile) and get_sampling(image) == COARSE:
        made["subsampling"] = COARSE
    names = ("icc_profile",) if image.format == "TIFF" else ("icc_profile", "exif")
    return made | {name: picture.info[name] for name in names if picture.info.get(name)}
