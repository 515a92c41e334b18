"""Make the square of a JPEG that is decoded at a part of its size: sooner, and of other pixels."""

from __future__ import annotations

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images.image_spec import ImageSpec
from pgcli.images.pixels import apply_orientation, to_8bit, to_rgb


def squared(image: JpegImageFile, spec: ImageSpec) -> Image.Image:
    """The picture in the square, from one of 1/2, 1/4 or 1/8 of its size where that is enough.

    Each side decoded has at least the square's pixels. libjpeg leaves out the finest frequencies of
    every block, so sharp edges differ most. A JPEG below twice the square's side is decoded whole;
    it differs by rounding alone, and only where it is turned: the square is, not the picture.
    """
    side = (spec.resolution, spec.resolution)
    drafted = image.draft(None, side)
    image.load()
    # the last decoded pixels may lie half outside of the picture: the box says how much of them
    box = None if drafted is None else drafted[1]
    small = to_8bit(image).resize(side, Image.Resampling(spec.resample), box)
    return to_rgb(apply_orientation(small, image))
