"""Modules with random weights, because zeros and ones could hide errors."""

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def randomised(module: Module, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Module:
    """The module with all parameters random, including norms and position embeddings.

    Matrices keep the scale of their inputs, so that every layer contributes.
    """
    generator = torch.Generator().manual_seed(seed)
    module.to(dtype).requires_grad_(False).eval()
    for name, parameter in module.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        fan_in = parameter[0].numel() if parameter.ndim > 1 and "embedding" not in name else 1
        parameter.copy_(drawn / fan_in**0.5)
    return module


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A tensor of standard normal numbers that depends only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
