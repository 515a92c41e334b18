"""AdamW with weight decay on matrices only, and the learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class CosineSchedule:
    """Linear warm-up over `warmup` steps, then cosine decay to zero."""

    steps: int
    warmup: int
    learning_rate: float

    def at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to the kernels of linear layers and convolutions.

    Biases, norms, embeddings, the class token, the probe, and the scale and bias of logits have no
    weight decay, as in big_vision and open_clip.
    """
    if sum(size > 1 for size in parameter.shape) < 2:
        return False
    module = name.split(".")[-2] if "." in name else ""
    return "embed" not in module or module == "patch_embedding"


def make_optimizer(
    model: nn.Module,
    *,
    weight_decay: float,
    betas: tuple[float, float],
    kind: type[torch.optim.AdamW] = torch.optim.AdamW,
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in two groups: `decayed` and `not decayed`.

    Raises ValueError for parameters in half precision, which would round small updates away.
    """
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    for name, weight in trained:
        if torch.finfo(weight.dtype).bits < 32:
            raise ValueError(f"{name} is trained in {weight.dtype}, not in torch.float32")
    decayed = [weight for name, weight in trained if is_decayed(name, weight)]
    not_decayed = [weight for name, weight in trained if not is_decayed(name, weight)]
    groups = [
        {"name": "decayed", "params": decayed, "weight_decay": weight_decay},
        {"name": "not decayed", "params": not_decayed, "weight_decay": 0.0},
    ]
    return kind([group for group in groups if group["params"]], betas=betas)
