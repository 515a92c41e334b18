"""Stamps of answered images: size, modification time and digest of each file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256

import numpy as np

from pgcli.images.files import short_digest
from pgcli.stores.files import open_regular

#: Size, modification time and digest of a file; zeros if unknown.
Stamp = tuple[int, int, int]
CHUNK_BYTES = 2**20


def is_other(path: str, stamp: Stamp) -> bool:
    """Whether a file differs from its stamp in size or time, or does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 - Path is slow, and this is called for each image
    except (OSError, ValueError):
        return True
    return (status.st_size, status.st_mtime_ns) != stamp[:2]


def sizes_and_times(paths: Iterable[str | None]) -> np.ndarray:
    """The size and the modification time of each file; -1 if it does not exist."""
    known: list[tuple[int, int]] = []
    for path in paths:
        try:
            status = os.stat(path or "")  # noqa: PTH116
            known.append((status.st_size, status.st_mtime_ns))
        except (OSError, ValueError):
            known.append((-1, -1))
    return np.array(known, np.int64)


def read_stamp(path: str, stamp: Stamp) -> Stamp | None:
    """The current stamp of a file; None for a missing file.

    Its bytes are read if it has the size in the earlier `stamp`.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
        if status.st_size != stamp[0]:
            return status.st_size, status.st_mtime_ns, 0
        digest = sha256()
        with open_regular(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns, short_digest(digest.digest())


def no_stamps(count: int = 0) -> np.ndarray:
    """Unknown stamps, one per item."""
    return np.zeros((count, 3), np.int64)
