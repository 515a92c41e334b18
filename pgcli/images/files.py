"""Read the bytes of a picture's file, and of nothing that only looks like one."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from pathlib import Path

from pgcli.images.errors import EMPTY, MISSING, NOT_A_FILE, ImageError, too_large
from pgcli.images.image_spec import ImageLimits
from pgcli.records import Fault

#: What passes: a network disk that lost its server, a cable, a queue that was full.
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
WAITS_SECONDS = (0.5, 1.0, 2.0)


def read_file(path: str, limits: ImageLimits, most: int | None = None) -> bytes:
    """The bytes of a regular file; nothing else is opened: a FIFO would wait, a device act.

    No more than `most` of them, where that is given. A disk or a network that fails for a moment is
    given another. Raises `ImageError` where there are no bytes to be had, or more than the limit.
    """
    for wait_seconds in WAITS_SECONDS:
        try:
            return _read(path, limits, most)
        except ImageError as problem:
            cause = problem.__cause__
            if not isinstance(cause, OSError) or cause.errno not in TRANSIENT:
                raise
        time.sleep(wait_seconds * random.uniform(0.5, 1))  # all workers at once would fail again
    return _read(path, limits, most)


def _read(path: str, limits: ImageLimits, most: int | None) -> bytes:
    try:
        _check_kind(Path(path).stat(), limits)
        # a FIFO may be there by now, and opening it without O_NONBLOCK waits for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check_kind(status, limits)
            if most is not None:
                return checked_bytes(file.read(most), limits)
            # a read makes room for all that it is asked for: ask for more only if the file grew
            data = file.read(status.st_size + 1)
            if len(data) > status.st_size:
                data += file.read(limits.max_bytes + 1 - len(data))
            return checked_bytes(data, limits)
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise ImageError(MISSING) from problem
    except PermissionError as problem:
        raise ImageError(Fault("permission_denied", "The file may not be read.")) from problem
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else type(problem).__name__
        raise ImageError(Fault("io_error", f"Reading the file failed: {reason}.")) from problem
    except ValueError as problem:  # a NUL in the path, or characters that no file name has
        raise ImageError(MISSING) from problem


def checked_bytes(data: bytes | None, limits: ImageLimits) -> bytes:
    """The data, if there is some and not too much. Raises `ImageError`."""
    if not data:
        raise ImageError(EMPTY)
    if len(data) > limits.max_bytes:
        raise ImageError(too_large(limits))
    return data


def _check_kind(status: os.stat_result, limits: ImageLimits) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(NOT_A_FILE)
    if status.st_size > limits.max_bytes:
        raise ImageError(too_large(limits))
