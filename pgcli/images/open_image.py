"""Opens an image: its bytes are read, its format identified and its size checked."""

from __future__ import annotations

from typing import NamedTuple

from PIL import ImageFile

from pgcli.images.errors import ImageError, too_many_pixels, wrap_image_errors
from pgcli.images.files import checked_bytes, read_file
from pgcli.images.formats import identify_image
from pgcli.images.image_spec import ImageLimits, Size
from pgcli.images.orientation import header_size


class OpenedImage(NamedTuple):
    """An image whose header is within the limits, not decoded yet, and its bytes."""

    image: ImageFile.ImageFile
    size: Size
    data: bytes


def open_image(
    source: str | bytes | None, limits: ImageLimits, root: str | None = None
) -> OpenedImage:
    """The image of a file (its path, which has to be in the `root`) or of bytes.

    Raises ImageError.
    """
    if isinstance(source, str):
        data = read_file(source, limits, root=root)
    else:
        data = checked_bytes(source, limits)
    with wrap_image_errors():
        image = identify_image(data)
        size = header_size(image)
    if size.width * size.height > limits.max_pixels:
        raise ImageError(too_many_pixels(size, limits), size)
    return OpenedImage(image, size, data)
