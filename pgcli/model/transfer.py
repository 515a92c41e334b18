"""Copies between host and device without waiting for either."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def reads_pinned(device: torch.device) -> bool:
    """Whether copies from pinned memory to the device are asynchronous."""
    return device.type == "cuda"


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; on CUDA it is copied from pinned memory, asynchronously."""
    if reads_pinned(device):
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def to_host(x: Tensor) -> Tensor:
    """A copy on the host, complete once the device has passed this point of its stream."""
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
    return host.copy_(x, non_blocking=True)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device current; kernels and graphs run on its streams by default."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
