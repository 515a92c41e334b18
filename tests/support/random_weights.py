"""Modules with random weights, none of them at the zero or one that would hide a fault."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def randomised(module: Module, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Module:
    """The module with every parameter drawn anew, norms and positions included.

    A matrix keeps its outputs as large as its inputs, so that no layer's part drowns in another's.
    """
    generator = torch.Generator().manual_seed(seed)
    module.to(dtype).requires_grad_(False).eval()
    for name, parameter in module.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        fan_in = parameter[0].numel() if parameter.ndim > 1 and "embedding" not in name else 1
        parameter.copy_(drawn / fan_in**0.5)
    return module


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A tensor of standard normal numbers, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
