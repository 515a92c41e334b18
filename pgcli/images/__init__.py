"""Reads image files: bytes become upright RGB and the model's pixels, or a named fault.

`files` reads bytes within limits, `formats` opens an image and refuses what Pillow may misread, and
`decode` makes its pixels. `pool` decodes ahead of the model, in order; each `worker` is a
`child_process` with limits of memory and time.
"""

from pgcli.images.decode import (
    ImageDecoder,
    ImageSpec,
    decode,
    load_image,
    load_thumbnail,
    silence_decoders,
    stored_and_upright,
)
from pgcli.images.files import ImageError, ImageLimits, Size, item_bytes
from pgcli.images.formats import ImageHeader

__all__ = [
    "ImageDecoder",
    "ImageError",
    "ImageHeader",
    "ImageLimits",
    "ImageSpec",
    "Size",
    "decode",
    "item_bytes",
    "load_image",
    "load_thumbnail",
    "silence_decoders",
    "stored_and_upright",
]
