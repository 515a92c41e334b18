"""The optimizer, with weight decay on matrices only, and the learning rate's schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class CosineSchedule:
    """A linear rise over the first `warmup` steps, then half a cosine down to zero."""

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

    Biases, norms, embeddings, the class token, the probe, and the scale and bias of logits are left
    alone, as in big_vision and open_clip.
    """
    if sum(size > 1 for size in parameter.shape) < 2:
        return False
    module = name.split(".")[-2] if "." in name else ""
    return "embed" not in module or module == "patch_embedding"


def make_optimizer(
    model: nn.Module, *, weight_decay: float, betas: tuple[float, float], muon: bool = False
) -> torch.optim.AdamW:
    """AdamW of the parameters that are trained, in two groups: `decayed` and `not decayed`.

    With `muon`, the matrices of the first group are trained by Muon.
    Raises ValueError for parameters in half precision: most updates are too small to change them.
    """
    trained = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    for name, one in trained:
        if torch.finfo(one.dtype).bits < 32:
            raise ValueError(f"{name} is trained in {one.dtype}, not in torch.float32")
    decayed = [one for name, one in trained if is_decayed(name, one)]
    rest = [one for name, one in trained if not is_decayed(name, one)]
    groups = [
        {"name": "decayed", "params": decayed, "weight_decay": weight_decay},
        {"name": "not decayed", "params": rest, "weight_decay": 0.0},
    ]
    kind = Muon if muon else torch.optim.AdamW
    return kind([one for one in groups if one["params"]], betas=betas)


class Muon(torch.optim.AdamW):
    """AdamW, in which the momentum of matrices with weight decay is orthogonalized.

    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; the updates are
    as large as AdamW's, by Liu et al., "Muon is scalable for LLM training", 2025.
    """

    MOMENTUM = 0.95
    UPDATE_RMS = 0.2  # of the values of AdamW's updates, in units of the learning rate

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient; those of matrices are then dropped."""
        for group in self.param_groups:
            for weight in group["params"] if group["name"] == "decayed" else ():
                if weight.ndim == 2 and weight.grad is not None:
                    self._update(weight, weight.grad, group["lr"], group["weight_decay"])
                    weight.grad = None
        super().step()

    def _update(
        self, weight: Tensor, gradient: Tensor, learning_rate: float, weight_decay: float
    ) -> None:
        state = self.state[weight]
        momentum = state.setdefault("exp_avg", torch.zeros_like(weight))
        momentum.lerp_(gradient, 1 - self.MOMENTUM)
        update = orthogonalized(gradient.lerp(momentum, self.MOMENTUM))
        scale = self.UPDATE_RMS * max(weight.shape) ** 0.5
        weight.mul_(1 - learning_rate * weight_decay)
        weight.sub_(update, alpha=learning_rate * scale)


def orthogonalized(matrix: Tensor) -> Tensor:
    """The matrix with all singular values near 1, by five Newton-Schulz iterations."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + torch.addmm(square, square, square, beta=b, alpha=c) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
