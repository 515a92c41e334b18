"""Muon, the optimizer of the built-in model: orthogonalized momentum of matrices."""

from __future__ import annotations

import torch
from torch import Tensor


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
