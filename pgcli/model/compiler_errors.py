"""Distinguishes failures to build a kernel from errors of the device and of memory."""

from __future__ import annotations

import re

import torch

from pgcli.text import first_line

INSTALL_COMPILER = "apt-get install gcc python3-dev"
#: How PyTorch and Triton begin what the driver or its libraries report.
DEVICE_ERROR = re.compile(r"(CUDA|CUDA driver|HIP|cuDNN) error|Triton Error \[")
#: The reports about a kernel that the device does not load; it works on with others.
NOT_LOADED = re.compile(r"kernel image|PTX|not.supported|invalid device function", re.IGNORECASE)


def raise_out_of_memory(error: BaseException) -> None:
    """Raise the out-of-memory error that is this error or its cause, if any."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, torch.OutOfMemoryError):
            raise current
        current = current.__cause__ or current.__context__


def is_unsupported(error: BaseException) -> bool:
    """Whether the error means that a kernel cannot be built here; then its plain version runs.

    Building a kernel fails in as many ways as compilers, linkers and file systems do, with errors
    of any type. So this is every error except those that launches have: a device error, such as an
    illegal memory access, and memory that runs out.
    """
    return not any(
        isinstance(cause, (torch.OutOfMemoryError, MemoryError))
        or (DEVICE_ERROR.search(str(cause)) and not NOT_LOADED.search(str(cause)))
        for cause in (error, error.__cause__)
    )


def build_failure(error: BaseException) -> str:
    """The cause of an unsupported kernel on one line, with the command that may help."""
    return f"{first_line(error)}; if gcc or Python.h is missing: {INSTALL_COMPILER}"
