"""Settings of the C library's allocator."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
KEPT_BYTES = 2**29


def keep_freed_memory() -> None:
    """Have glibc keep up to 512 MiB of freed memory for later allocations.

    Otherwise the kernel maps and clears the same hundred megabytes in every layer, a sixth of the
    prefill time of a full-size model. Other C libraries ignore the call, and environment settings
    take precedence.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
