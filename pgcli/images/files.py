"""Reads the bytes of images, from regular files or from a range of one, with retries."""

from __future__ import annotations

import errno
import os
import random
import time

from pgcli.images.errors import (
    EMPTY,
    NOT_A_FILE,
    TRUNCATED,
    ImageError,
    no_such_file,
    too_many_bytes,
)
from pgcli.images.image_spec import ImageLimits
from pgcli.images.limits import claim_memory
from pgcli.records import OUTSIDE_FOLDER, Fault, Item
from pgcli.stores import Reader, RemoteError
from pgcli.stores.files import NotRegularFileError, OutsideFolderError, open_regular
from pgcli.stores.urls import url_scheme

#: Transient errors: a network disk that lost its server, a loose cable, a full queue.
TRANSIENT = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNRESET,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
}
RETRY_SECONDS = (0.5, 1.0, 2.0)


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
    max_bytes: int | None = None,
    *,
    root: str | None = None,
    span: tuple[int, int] | None = None,
) -> bytes:
    """The bytes of a regular file, or the first `max_bytes` of them.

    With a `root` (a real path), the file must be in it; with a `span` (offset and size), only these
    bytes are read. Transient errors are retried. Raises ImageError for an unreadable or empty file,
    and for one above the limit.
    """
    for wait_seconds in RETRY_SECONDS:
        try:
            return _read(path, limits, max_bytes, root, span)
        except ImageError as problem:
            cause = problem.__cause__
            if not isinstance(cause, OSError) or cause.errno not in TRANSIENT:
                raise
        time.sleep(wait_seconds * random.uniform(0.5, 1))  # spreads the workers' retries
    return _read(path, limits, max_bytes, root, span)


def _read(
    path: str,
    limits: ImageLimits,
    max_bytes: int | None,
    root: str | None,
    span: tuple[int, int] | None,
) -> bytes:
    try:
        with open_regular(path, root) as file:
            offset, size = span or (0, os.fstat(file.fileno()).st_size)
            if not 0 <= size <= limits.max_bytes:
                raise ImageError(too_many_bytes(limits))
            wanted = size if max_bytes is None else min(size, max_bytes)
            claim_memory(wanted)
            file.seek(offset)
            data = file.read(wanted)
            if span and len(data) < wanted:
                raise ImageError(TRUNCATED)
            if not span and max_bytes is None and (more := file.read(1)):  # the file has grown
                claim_memory(2 * limits.max_bytes)
                data = b"".join((data, more, file.read(limits.max_bytes - size)))
            return checked_bytes(data, limits)
    except NotRegularFileError as problem:
        raise ImageError(NOT_A_FILE) from problem
    except OutsideFolderError as problem:
        raise ImageError(OUTSIDE_FOLDER) from problem
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise ImageError(no_such_file(path)) from problem
    except PermissionError as problem:
        raise ImageError(Fault("permission_denied", "No permission to read the file.")) from problem
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else type(problem).__name__
        raise ImageError(Fault("io_error", f"Reading the file failed: {reason}.")) from problem
    except (
        ValueError,
        OverflowError,
    ) as problem:  # a NUL or another invalid character in the path
        raise ImageError(no_such_file(path)) from problem


def checked_bytes(data: bytes | None, limits: ImageLimits) -> bytes:
    """The data, unless they are empty or above the limit. Raises ImageError."""
    if not data:
        raise ImageError(EMPTY)
    if len(data) > limits.max_bytes:
        raise ImageError(too_many_bytes(limits))
    return data
