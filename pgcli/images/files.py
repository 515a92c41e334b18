"""Reads the bytes of images, from regular files or from a range of one."""

from __future__ import annotations

import os

from pgcli.images.errors import (
    EMPTY,
    NO_SUCH_FILE,
    NOT_A_FILE,
    TRUNCATED,
    ImageError,
    too_many_bytes,
)
from pgcli.images.image_spec import ImageLimits
from pgcli.images.limits import claim_memory
from pgcli.records import OUTSIDE_FOLDER, Fault, Item
from pgcli.stores import Reader, RemoteError
from pgcli.stores.files import NotRegularFileError, OutsideFolderError, open_regular
from pgcli.stores.urls import url_scheme


def item_bytes(item: Item, limits: ImageLimits) -> bytes:
    """The bytes of an item's image, from its data or its file. Raises ImageError."""
    if item.data is not None or item.path is None:
        return checked_bytes(item.data, limits)
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
            if not span and (more := file.read(1)):  # the file has grown
                claim_memory(2 * limits.max_bytes)
                data = b"".join((data, more, file.read(limits.max_bytes - size)))
            return checked_bytes(data, limits)
    except NotRegularFileError as problem:
        raise ImageError(NOT_A_FILE) from problem
    except OutsideFolderError as problem:
        raise ImageError(OUTSIDE_FOLDER) from problem
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise ImageError(NO_SUCH_FILE) from problem
    except PermissionError as problem:
        raise ImageError(Fault("permission_denied", "No permission to read the file.")) from problem
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else type(problem).__name__
        raise ImageError(Fault("io_error", f"Reading the file failed: {reason}.")) from problem
    except (ValueError, OverflowError) as problem:  # an invalid character in the path, such as NUL
        raise ImageError(NO_SUCH_FILE) from problem


def checked_bytes(data: bytes | None, limits: ImageLimits) -> bytes:
    """The data, unless they are empty or above the limit. Raises ImageError."""
    if not data:
        raise ImageError(EMPTY)
    if len(data) > limits.max_bytes:
        raise ImageError(too_many_bytes(limits))
    return data
