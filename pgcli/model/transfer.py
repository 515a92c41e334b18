"""Copies between host and device without waiting for either."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor


def reads_pinned(device: torch.device) -> bool:
    """Whether copies from pinned memory to the device are asynchronous."""
    return device.type == "cuda"


def empty_on_host(shape: Sequence[int], dtype: torch.dtype, *, pinned: bool) -> Tensor:
    """A tensor on the host without values, in pinned memory if `pinned` and there is any.

    Containers and WSL2 limit pinned memory; copies from and to other memory wait for the device.
    """
    with suppress(RuntimeError):
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    return torch.empty(shape, dtype=dtype)


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; on CUDA it is copied from pinned memory, asynchronously."""
    if reads_pinned(device):
        host = empty_on_host(host.shape, host.dtype, pinned=True).copy_(host)
    return host.to(device, non_blocking=True)


def to_host(x: Tensor) -> Tensor:
    """A copy on the host, complete once the device has passed this point of its stream."""
    return empty_on_host(x.shape, x.dtype, pinned=x.is_cuda).copy_(x, non_blocking=True)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device current; kernels and graphs run on its streams by default."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
