"""Reads the bytes of images, from regular files or from a range of one; limits and faults."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image

from pgcli.images.child_process import claim_memory
from pgcli.images.pdf import PdfError, is_pdf, page_png
from pgcli.records import MAX_IMAGE_BYTES, Fault, Item
from pgcli.stores import Reader, RemoteError
from pgcli.stores.files import file_fault, open_regular
from pgcli.stores.urls import url_scheme

#: The longest side that an image may have; Parquet columns hold no larger width.
MAX_SIDE = 2**31 - 1


class Size(NamedTuple):
    """Pixels of the upright image."""

    width: int
    height: int


@dataclass(frozen=True)
class ImageLimits:
    """The largest image (pixels, by its header) and the largest file (bytes) that are accepted."""

    max_pixels: int = 89_478_485
    max_bytes: int = MAX_IMAGE_BYTES


EMPTY = Fault("not_an_image", "The file is empty.")
UNKNOWN = Fault("not_an_image", "The file is not an image of a known format.")
WEB_PAGE = Fault("not_an_image", "The file is a web page (HTML), not an image.")
TRUNCATED = Fault("truncated", "The file ends before the image does.")

#: The beginnings of Pillow's messages for files with a valid header and unsupported pixels.
LAYOUTS = (
    "Unsupported BMP bitfields",
    "Unsupported BMP comp",
    "Unsupported BMP pixel",
    "cannot handle ",
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


def item_bytes(item: Item, limits: ImageLimits) -> bytes:
    """The bytes of an item's image, from its data or its file. Raises ImageError."""
    if item.data is not None or item.path is None:
        return checked_bytes(item.data, limits)
    if item.span is not None and is_pdf(item.path):
        try:
            return page_png(item.path or "", item.span[0], item.root)
        except PdfError as problem:
            raise ImageError(problem.fault) from problem
    return read_file(item.path, limits, root=item.root, span=item.span)


def read_original(item: Item, limits: ImageLimits, reader: Reader | None) -> bytes:
    """The bytes of an item's image, read again, from a URL by a `reader`. Raises ImageError."""
    if item.fault is not None:
        raise ImageError(item.fault)
    is_here = item.data is not None or item.path is None or url_scheme(item.path) is None
    if reader is not None and not is_here:
        try:
            return checked_bytes(reader.read(item.path or ""), limits)
        except RemoteError as problem:
            raise ImageError(problem.fault) from problem
    return item_bytes(item, limits)


def file_time(path: str) -> int | None:
    """The modification time of a file before it is read, which shows changes during the read."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - Path is slow
    except (OSError, ValueError):
        return None


def short_digest(digest: bytes) -> int:
    """The first 63 bits of a digest, as an integer that fits JSON and NumPy."""
    return int.from_bytes(digest[:8]) >> 1


def read_file(
    path: str,
    limits: ImageLimits,
    *,
    root: str | None = None,
    span: tuple[int, int] | None = None,
) -> bytes:
    """The bytes of a regular file.

    With a `root` (a real path), the file must be in it; with a `span` (offset and size), only these
    bytes are read. Raises ImageError for an unreadable or empty file, and for one above the limit.
    """
    try:
        with open_regular(path, root) as file:
            offset, size = span or (0, os.fstat(file.fileno()).st_size)
            if not 0 <= size <= limits.max_bytes:
                raise ImageError(too_many_bytes(limits))
            claim_memory(size)
            file.seek(offset)
            data = file.read(size)
            if span and len(data) < size:
                raise ImageError(TRUNCATED)
            if not span and (more := file.read(1)):
                claim_memory(2 * limits.max_bytes)
                data = b"".join((data, more, file.read(limits.max_bytes - size)))
            return checked_bytes(data, limits)
    except (OSError, ValueError, OverflowError) as problem:
        raise ImageError(file_fault(problem)) from problem


def checked_bytes(data: bytes | None, limits: ImageLimits) -> bytes:
    """The data, unless they are empty or above the limit. Raises ImageError."""
    if not data:
        raise ImageError(EMPTY)
    if len(data) > limits.max_bytes:
        raise ImageError(too_many_bytes(limits))
    return data
