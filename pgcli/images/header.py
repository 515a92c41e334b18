"""Reads an image's format and size from its header, without decoding pixels."""

from __future__ import annotations

from pgcli.images.errors import ImageError, wrap_image_errors
from pgcli.images.files import read_file
from pgcli.images.formats import identify_image
from pgcli.images.image_spec import ImageLimits, Size
from pgcli.images.orientation import header_size

#: Read first of a file; most headers are shorter.
HEADER_BYTES = 64 * 2**10
#: Formats whose header is complete at the start of the file; others point anywhere into it.
HEADER_FIRST = frozenset({"JPEG", "PNG", "GIF", "BMP", "PPM"})


def read_header(data: bytes) -> tuple[str, Size]:
    """An image's format and its upright size as the header states it. Raises ImageError.

    A PNG may have its EXIF orientation after the pixels; then width and height are as stored.
    """
    with wrap_image_errors():
        image = identify_image(data)
        return str(image.format), header_size(image)


def read_file_header(path: str, limits: ImageLimits, root: str | None = None) -> tuple[str, Size]:
    """`read_header` of a file, of which as little as possible is read. Raises ImageError."""
    try:
        format, size = read_header(read_file(path, limits, HEADER_BYTES, root=root))
        if format in HEADER_FIRST:
            return format, size
    except ImageError:
        pass  # the header may be longer
    return read_header(read_file(path, limits, root=root))
