"""Distinguishes errors of kernel compilers from errors of the device."""

from __future__ import annotations

import re

import torch

COMPILER_PACKAGES = ("torch._dynamo", "torch._inductor", "triton")
UNSUPPORTED = re.compile(
    "unsupported|not supported|not implemented|no (valid )?triton config", re.IGNORECASE
)


def raise_out_of_memory(error: BaseException) -> None:
    """Raise the out-of-memory error that is this error or its cause, if any."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, torch.OutOfMemoryError):
            raise current
        current = current.__cause__ or current.__context__


def is_unsupported(error: BaseException) -> bool:
    """Whether the error means that a kernel cannot be compiled here.

    It comes from the compiler's own packages, from a missing package or program, or has a message
    that says so. A device error, such as an illegal memory access, is not one.
    """
    return any(
        isinstance(cause, (NotImplementedError, ImportError, OSError))
        or type(cause).__module__.startswith(COMPILER_PACKAGES)
        or UNSUPPORTED.search(str(cause)) is not None
        for cause in (error, error.__cause__)
        if cause is not None
    )
