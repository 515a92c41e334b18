"""Muon, the optimizer of the built-in model: orthogonalized momentum of matrices."""

from __future__ import annotations

import torch
from torch import Tensor

MOMENTUM = 0.95
UPDATE_RMS = 0.2  # RMS of AdamW's updates, in units of the learning rate


class Muon(torch.optim.AdamW):
    """AdamW with orthogonalized momentum for matrices with weight decay.

    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; scaled to the
    size of AdamW's updates as in Liu et al., "Muon is scalable for LLM training", 2025.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient; gradients of matrices are then dropped."""
        for group in self.param_groups:
            for weight in group["params"] if group["name"] == "decayed" else ():
                if weight.ndim != 2 or weight.grad is None:
                    continue
                momentum = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 1 - MOMENTUM)
                update = orthogonalized(weight.grad.lerp(momentum, MOMENTUM))
                scale = UPDATE_RMS * max(weight.shape) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(update, alpha=group["lr"] * scale)
                weight.grad = None
        super().step()


def orthogonalized(matrix: Tensor) -> Tensor:
    """The matrix with all singular values near 1, by five Newton-Schulz iterations."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + torch.addmm(square, square, square, beta=b, alpha=c) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
