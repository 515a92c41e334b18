"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Schedule:
    """Warmup, a constant learning rate, and linear decay to zero over the last `decay` steps.

    Because of the constant part, the number of steps can be changed while a run is resumed.
    """

    steps: int
    warmup: int
    decay: int
    rate: float

    def at(self, step: int) -> float:
        warmup = (step + 1) / self.warmup
        decay = (self.steps - step) / self.decay
        return self.rate * max(0.0, min(1.0, warmup, decay))


def make_optimizer(*modules: nn.Module) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, not on norms, biases and embeddings."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for module in modules:
        for name, parameter in module.named_parameters():
            is_matrix = parameter.ndim > 1 and "embed" not in name
            (decayed if is_matrix else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
