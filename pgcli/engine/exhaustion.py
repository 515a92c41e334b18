"""A device's exhausted memory as an error that says for what it was, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pgcli.errors import NoUsableDevice

CPU_ALLOCATOR = "DefaultCPUAllocator"  # its exhaustion is a plain RuntimeError of this name


@contextmanager
def memory_named(what: str, remedy: str) -> Iterator[None]:
    """Run a block that takes memory for `what`; NoUsableDevice where there is none left."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        exhausted = not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError)
        if not exhausted and CPU_ALLOCATOR not in str(error):
            raise
        raise NoUsableDevice(f"the device has no memory left for {what}", hint=remedy) from error
