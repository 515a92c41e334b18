"""Limits that a worker process sets for itself: its memory, and its end with its parent."""

from __future__ import annotations

import ctypes
import resource
import signal
from contextlib import suppress
from pathlib import Path

#: For one image: the largest that is decoded, 89 million pixels, takes one or two gigabytes.
MEMORY_LIMIT_BYTES = 4 * 2**30
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have Linux kill this process when the parent's thread that started it has ended.

    On other systems the process ends at the end of its input, after the image it is decoding.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory() -> None:
    """Make allocations fail beyond MEMORY_LIMIT_BYTES on top of what is allocated now."""
    with suppress(OSError, ValueError):
        allocated = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = allocated + MEMORY_LIMIT_BYTES
        if hard_limit == resource.RLIM_INFINITY or limit < hard_limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
