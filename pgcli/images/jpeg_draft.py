"""Decodes JPEGs at a reduced size for `--fast-decode`: faster, with slightly different pixels."""

from __future__ import annotations

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images.image_spec import ImageSpec
from pgcli.images.orientation import apply_orientation
from pgcli.images.pixels import to_8bit, to_rgb


def resize_draft(image: JpegImageFile, spec: ImageSpec) -> Image.Image:
    """The image at the model's resolution, from 1/2, 1/4 or 1/8 of its size where that suffices.

    Each decoded side has at least the model's pixels. libjpeg leaves out the finest frequencies of
    every block, so sharp edges differ most. A JPEG below twice the model's resolution is decoded
    in full; it differs by rounding alone, and only if it is rotated: after resizing, not before.
    """
    size = spec.resized(*image.size)
    draft = image.draft(None, size)
    image.load()
    # the last decoded pixels may lie half outside the image: the box says how much of them counts
    box = None if draft is None else draft[1]
    resized = to_8bit(image).resize(size, Image.Resampling(spec.resample), box)
    return to_rgb(spec.crop(apply_orientation(resized, image)))
