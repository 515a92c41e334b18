"""Reads image files: bytes become upright RGB and the model's pixels, or a named fault."""

from pgcli.images.decode import ImageDecoder, decode
from pgcli.images.errors import ImageError
from pgcli.images.file_stamp import StampComparison
from pgcli.images.formats import FORMATS
from pgcli.images.header import read_file_header, read_header
from pgcli.images.image_spec import ImageLimits, ImageSpec, Size
from pgcli.images.load import load_image, load_thumbnail, stored_and_upright

__all__ = [
    "FORMATS",
    "ImageDecoder",
    "ImageError",
    "ImageLimits",
    "ImageSpec",
    "Size",
    "StampComparison",
    "decode",
    "load_image",
    "load_thumbnail",
    "read_file_header",
    "read_header",
    "stored_and_upright",
]
