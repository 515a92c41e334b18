"""Loads an image as a person sees it: upright RGB, in full size or as a thumbnail."""

from __future__ import annotations

from PIL import Image, ImageFile
from PIL.ImageOps import exif_transpose
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images.errors import wrap_image_errors
from pgcli.images.formats import identify_image
from pgcli.images.image_spec import ImageLimits, Size
from pgcli.images.open_image import open_image
from pgcli.images.orientation import is_rotated
from pgcli.images.pixels import to_rgb, upright_8bit


def load_image(source: str | bytes | None, limits: ImageLimits) -> Image.Image:
    """The first frame of a file (its path) or of bytes, in RGB, with its EXIF orientation applied.

    Transparent pixels become white; 16-bit and float values are scaled, not clipped. Raises
    ImageError, and nothing else, whatever is wrong with the image.
    """
    image, size, data = open_image(source, limits)
    with wrap_image_errors(size, data):
        image.load()
        return to_rgb(upright_8bit(image))


def load_thumbnail(
    source: str | bytes | None, side: int, limits: ImageLimits, root: str | None = None
) -> tuple[Size, Image.Image]:
    """The upright size, and `load_image` scaled down to at most `side` pixels on either side.

    JPEGs are decoded at a reduced size. A file has to be in the `root`. Raises ImageError, and
    nothing else.
    """
    image, size, data = open_image(source, limits, root)
    with wrap_image_errors(size, data):
        if isinstance(image, JpegImageFile):
            image.draft(None, (side, side))
        image.load()
        thumbnail = upright_8bit(image)
        thumbnail.thumbnail((side, side), Image.Resampling.HAMMING, reducing_gap=3.0)
        return size, to_rgb(thumbnail)


def stored_and_upright(
    data: bytes, limits: ImageLimits
) -> tuple[ImageFile.ImageFile, Image.Image] | None:
    """An image as stored and with its EXIF orientation applied, both in the stored pixel format.

    None for an image that is stored upright. Raises ImageError, and nothing else.
    """
    with wrap_image_errors(data=data):
        if not is_rotated(identify_image(data), data):
            return None
        image = open_image(data, limits).image
        image.load()  # which applies the orientation of TIFF
        return image, image.copy() if image.format == "TIFF" else exif_transpose(image)
