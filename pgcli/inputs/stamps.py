"""Stamps of answered images: size, modification time and digest of each file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import file_digest

import numpy as np

from pgcli.images.files import short_digest
from pgcli.stores.files import open_regular

#: Size, modification time and digest of a file; zeros if unknown.
Stamp = tuple[int, int, int]


def size_and_time(path: str | None) -> tuple[int, int]:
    """The size and the modification time of a file; -1 if it does not exist."""
    try:
        status = os.stat(path or "")  # noqa: PTH116 - Path is slow, and this is called for each image
    except (OSError, ValueError):
        return -1, -1
    return status.st_size, status.st_mtime_ns


def is_other(path: str, stamp: Stamp) -> bool:
    """Whether a file differs from its stamp in size or time, or does not exist."""
    return size_and_time(path) != stamp[:2]


def sizes_and_times(paths: Iterable[str | None]) -> np.ndarray:
    """The size and the modification time of each file."""
    return np.array([*map(size_and_time, paths)], np.int64)


def read_stamp(path: str, stamp: Stamp) -> Stamp | None:
    """The current stamp of a file; None for a missing file.

    Its bytes are read if it has the size in the earlier `stamp`.
    """
    size, time = size_and_time(path)
    if size != stamp[0]:
        return None if size < 0 else (size, time, 0)
    try:
        with open_regular(path) as file:
            return size, time, short_digest(file_digest(file, "sha256").digest())
    except OSError:
        return None


def no_stamps(count: int = 0) -> np.ndarray:
    """Unknown stamps, one per item."""
    return np.zeros((count, 3), np.int64)
