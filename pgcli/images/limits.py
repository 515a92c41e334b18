"""Limits for processes that read untrusted bytes: memory, processor time, and the parent's end."""

from __future__ import annotations

import ctypes
import fcntl
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: For one image: the largest that is decoded by default, 89 million pixels, takes one gigabyte.
MEMORY_LIMIT_BYTES = 4 * 2**30
#: An image that takes more memory is decoded while no other such image is.
UNCLAIMED_BYTES = 256 * 2**20
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have Linux kill this process when the parent's thread that started it has ended.

    On other systems the process ends at the end of its input, after its current item.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(size: int | None = None) -> None:
    """Make allocations fail that exceed the current memory by `size` bytes (MEMORY_LIMIT_BYTES)."""
    with suppress(OSError, ValueError):
        allocated = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        limit = allocated + (MEMORY_LIMIT_BYTES if size is None else size)
        if soft_limit == resource.RLIM_INFINITY or limit < soft_limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """A block in which allocations beyond `size` more bytes raise MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(size)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_processor_time(seconds: float) -> None:
    """End this process by SIGPROF after so much processor time; 0 removes the limit."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


class Budget:
    """A budget of bytes for several threads; a thread that needs more than all has them alone."""

    def __init__(self, size: int):
        self._size = size
        self._held = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, size: int) -> bool:
        """Wait until so many bytes are free, and take them. False once the budget is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or not self._held or self._held + size <= self._size
            )
            self._held += size
            return not self._closed

    def give(self, size: int) -> None:
        """Return so many bytes. A waiting thread wakes up once a sixteenth of all bytes is free."""
        with self._changed:
            self._held -= size
            if self._held <= self._size * 15 // 16:
                self._changed.notify_all()

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


_lock: IO[bytes] | None = None


def share_memory(lock: str) -> None:
    """Have `claim_memory` lock this file, for the rest of this process."""
    global _lock
    _lock = Path(lock).open("rb")  # noqa: SIM115 - open as long as the process


def claim_memory(size: int) -> None:
    """Wait until no other process of the pool decodes an image that takes much memory.

    The lock is held until `release_memory`, or the end of the process. Only processes of a pool
    wait.
    """
    if _lock is not None and size > UNCLAIMED_BYTES:
        fcntl.flock(_lock, fcntl.LOCK_EX)


def release_memory() -> None:
    """Let another process of the pool decode an image that takes much memory."""
    if _lock is not None:
        fcntl.flock(_lock, fcntl.LOCK_UN)
