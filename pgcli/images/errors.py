"""Faults of images: an error code and one sentence each, raised as ImageError."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from pgcli.images.image_spec import MAX_SIDE, ImageLimits, Size
from pgcli.records import Fault

NO_SUCH_FILE = Fault("missing", "The file does not exist.")
EMPTY = Fault("not_an_image", "The file is empty.")
UNKNOWN = Fault("not_an_image", "The file is not an image of a known format.")
WEB_PAGE = Fault("not_an_image", "The file is a web page (HTML), not an image.")
TRUNCATED = Fault("truncated", "The file ends before the image does.")
NOT_A_FILE = Fault("not_a_regular_file", "This is a directory, pipe, socket or device, not a file.")

#: The beginnings of Pillow's messages for files with a valid header and unsupported pixels.
LAYOUTS = (
    "Unsupported BMP bitfields",
    "Unsupported BMP comp",
    "Unsupported BMP pixel",
    "cannot handle ",  # of JPEG
    "unknown data organization",
)
PNG_END = b"IEND\xaeB`\x82"


class ImageError(Exception):
    """An image that cannot be read: its fault, and its upright size if the header states it."""

    def __init__(self, fault: Fault, size: Size | None = None):
        super().__init__(fault.message)
        self.fault = fault
        self.size = size


@contextmanager
def wrap_image_errors(size: Size | None = None, data: bytes = b"") -> Iterator[None]:
    """Raise every exception of the block as ImageError; `data`, the file, narrows the cause."""
    try:
        yield
    except ImageError as problem:
        problem.size = problem.size or size
        raise
    except Exception as problem:  # Pillow raises any exception for broken files
        raise ImageError(_fault(problem, data), size) from problem


def unsupported(what: str, size: Size | None = None) -> ImageError:
    """The error of an image in an unsupported layout."""
    message = f"This is {what}, which is not supported; convert it to PNG or JPEG of 8 bits."
    return ImageError(Fault("unsupported_format", message), size)


def too_many_pixels(size: Size, limits: ImageLimits) -> ImageError:
    """The error of an image above the limit of `--max-pixels`, or with too long a side."""
    is_long = max(size) > MAX_SIDE
    limit = f"the limit is {limits.max_pixels} (--max-pixels)"
    if is_long and size.width * size.height <= limits.max_pixels:
        limit = f"a side may have at most {MAX_SIDE}"
    message = f"The image has {size.width} x {size.height} pixels; {limit}."
    # columns cannot hold such a width
    return ImageError(Fault("too_many_pixels", message), None if is_long else size)


def too_many_bytes(limits: ImageLimits) -> Fault:
    """The fault of a file with too many bytes."""
    return Fault("too_large", f"The file is larger than {limits.max_bytes} bytes.")


def _fault(problem: Exception, data: bytes) -> Fault:
    if isinstance(problem, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return Fault("too_many_pixels", "A tile of the image has more pixels than Pillow decodes.")
    if isinstance(problem, MemoryError):
        return Fault("decode_failed", "There is not enough memory to decode the image.")
    ran_out = isinstance(problem.__cause__ or problem, EOFError | IndexError | struct.error)
    text = str(problem).lower()
    is_whole = data.endswith(PNG_END)  # the file has its end, so pixels inside are missing
    if not is_whole and (ran_out or "truncated" in text or "reached eof" in text):
        return TRUNCATED
    return unread(problem)


def unread(problem: Exception) -> Fault:
    """The fault of a file that Pillow does not read, by its exception."""
    if str(problem).startswith(LAYOUTS):
        message = f"Pillow does not read this layout ({problem}); convert it to PNG or JPEG."
        return Fault("unsupported_format", message)
    reason = type(problem).__name__
    return Fault("decode_failed", f"The image is damaged: its decoder failed ({reason}).")
