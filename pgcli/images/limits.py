"""Limits of processes that read foreign bytes: memory, processor time, and their parent's end."""

from __future__ import annotations

import ctypes
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: For one image: the largest that is decoded by default, 89 million pixels, takes one gigabyte.
MEMORY_LIMIT_BYTES = 4 * 2**30
#: What an image takes without asking: four of them hold less than one that asks may.
UNCLAIMED_BYTES = 64 * 2**20
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have Linux kill this process when the parent's thread that started it has ended.

    On other systems the process ends at the end of its input, after what it is working on.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(size: int | None = None) -> None:
    """Make allocations fail beyond `size` bytes (MEMORY_LIMIT_BYTES) on top of those of now."""
    with suppress(OSError, ValueError):
        allocated = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        limit = allocated + (MEMORY_LIMIT_BYTES if size is None else size)
        if soft_limit == resource.RLIM_INFINITY or limit < soft_limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """A block in which allocations of this process fail beyond `size` bytes: MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(size)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_processor_time(seconds: float) -> None:
    """End this process by SIGPROF after so much processor time from now; 0 ends the limit."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


class Budget:
    """Bytes that threads share; a thread that needs more than all of them holds them alone."""

    def __init__(self, size: int):
        self._size = size
        self._held = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, size: int) -> bool:
        """Wait until so many bytes are free and hold them. False once the budget is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or not self._held or self._held + size <= self._size
            )
            self._held += size
            return not self._closed

    def give(self, size: int) -> None:
        """Hold so many bytes less."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


_ask: Callable[[int], None] | None = None


def claim_memory(size: int) -> None:
    """Wait until an image may take so many bytes, in place of what was claimed for it before.

    Only processes of a pool wait, whose images share a budget.
    """
    if _ask is not None and size > UNCLAIMED_BYTES:
        _ask(size)


def ask_for_memory(ask: Callable[[int], None]) -> None:
    """Have `claim_memory` call this, for the rest of this process."""
    global _ask
    _ask = ask
