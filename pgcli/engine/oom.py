"""A device's exhausted memory: told from other errors, survived, or named with what it was for."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from pgcli.errors import NoUsableDevice

Made = TypeVar("Made")

#: What a RuntimeError says where PyTorch has no type for it.
SIGNS = (
    "DefaultCPUAllocator",
    "out of memory",  # CUDA's driver, asked by a library; Apple's GPU
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_oom(error: BaseException) -> bool:
    """Whether memory ran out, and nothing else.

    An illegal access or a failed assertion on a GPU is none: after it the device answers nothing.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def catch_oom(work: Callable[[], Made]) -> Made | None:
    """What the work makes; None where memory ran out, and what it had taken is free again."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
    # only here, past the `except`: its traceback held the failed pass's tensors
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return None


@contextmanager
def memory_named(what: str, remedy: str) -> Iterator[None]:
    """Run a block that takes memory for `what`; NoUsableDevice where there is none left."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
        raise NoUsableDevice(f"the device has no memory left for {what}", hint=remedy) from error
