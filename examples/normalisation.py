"""Norms, dropout and activations: which of them let the other images of a batch show through.

    python examples/normalisation.py

pgcli promises that batching is invisible: an answer does not depend on which images share its
batch. LayerNorm (vision tower) and RMSNorm (decoder) take their statistics from one vector, so they
keep the promise. BatchNorm takes them from the batch.

B images · D width
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.gemma import RMSNorm

ROWS = torch.tensor([[0.0, 4.0], [-1.0, 7.0], [3.0, 5.0]])  # three vectors of two features
EPS = 1e-6  # keeps the division finite where all values are equal


def layer_norm(x_BD: Tensor) -> Tensor:
    """Each vector minus its mean, over its standard deviation: a mean of 0 and a variance of 1."""
    centred = x_BD - x_BD.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()


def rms_norm(x_BD: Tensor) -> Tensor:
    """Each vector over the root of its mean square. One statistic less; the mean is not removed."""
    return x_BD / (x_BD.square().mean(-1, keepdim=True) + EPS).sqrt()


def batch_norm(x_BD: Tensor) -> Tensor:
    """Each feature minus its mean over the batch, over its standard deviation over the batch."""
    centred = x_BD - x_BD.mean(0)
    return centred / (centred.square().mean(0) + EPS).sqrt()


#: The formulas and torch's or pgcli's modules of the same name, as new: scale 1, shift 0.
NORMS = {
    "LayerNorm": (layer_norm, lambda width: nn.LayerNorm(width, eps=EPS)),
    "RMSNorm": (rms_norm, lambda width: RMSNorm(width, EPS)),
    "BatchNorm": (batch_norm, lambda width: nn.BatchNorm1d(width, eps=EPS)),
}


def show_statistics() -> None:
    print("three vectors", ROWS.int().tolist())
    means, stds = ROWS.mean(1).tolist(), ROWS.std(1, correction=0).tolist()
    print("  LayerNorm: a mean and a deviation of each vector", means, stds)
    means = [round(x, 2) for x in ROWS.mean(0).tolist()]
    print("  BatchNorm: a mean of each feature", means)
    moved = torch.cat([ROWS[:2], torch.tensor([[30.0, 50.0]])])
    means = [round(x, 2) for x in moved.mean(0).tolist()]
    print("  the same after the third vector grew tenfold", means)


@torch.no_grad()
def neighbours(width: int = 64) -> dict[str, float]:
    """How much a vector's output changes with its neighbours, for each norm."""
    x_BD = torch.randn(8, width)
    changes = {}
    for name, (formula, module) in NORMS.items():
        torch.testing.assert_close(formula(x_BD), module(width)(x_BD))
        louder = torch.cat([x_BD[:1], 3 * x_BD[1:] + 1])  # other images, the same first one
        changes[name] = (formula(x_BD)[0] - formula(louder)[0]).abs().max().item()
    return changes


def show_neighbours() -> None:
    print("the first of eight vectors, whose neighbours change")
    for name, change in neighbours().items():
        print(f"  {name:<10} output changes by {change:.2f}")
    print(
        "  In evaluation BatchNorm uses means of its training instead, which are not this batch's"
    )


def show_shift() -> None:
    """RMSNorm does not centre: what is added to all values of a vector stays."""
    x_BD = torch.randn(1, 64)
    print("all values of a vector plus 500")
    for name, norm in {"LayerNorm": layer_norm, "RMSNorm": rms_norm}.items():
        y_BD = norm(x_BD + 500)
        print(f"  {name:<10} mean {y_BD.mean():6.3f}, deviation {y_BD.std(correction=0):.3f}")


def dropout(x: Tensor, p: float) -> Tensor:
    """Values are set to 0 with probability p; the others grow by 1/(1-p), so that the mean stays.

    The factor belongs to training, so that in evaluation nothing has to be done.
    """
    return x * (torch.rand_like(x) >= p) / (1 - p)


def show_dropout() -> None:
    x = torch.ones(100_000)
    print("dropout of ones")
    for p in (0.1, 0.5):
        y = dropout(x, p)
        zeros, kept = (y == 0).float().mean(), y.max()
        print(f"  p {p}: {zeros:.3f} are 0, the others {kept:.4f}, the mean {y.mean():.3f}")
    layer = nn.Dropout(0.5).eval()
    print("  in evaluation it is the identity:", torch.equal(layer(x), x))


def dead_neurons(activation: str, inputs: int = 32, neurons: int = 1000) -> float:
    """The share of neurons whose weights have no gradient on 256 images.

    Their bias is -3, as after one step that was too large: nearly all their sums are negative.
    """
    layer = nn.Linear(inputs, neurons)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    nn.init.constant_(layer.bias, -3.0)
    getattr(F, activation)(layer(torch.randn(256, inputs))).sum().backward()
    assert layer.weight.grad is not None
    return (layer.weight.grad.abs().amax(-1) == 0).float().mean().item()


def show_dead_gradients() -> None:
    print("gradients at -3, -1, 1 and 3, and neurons without one")
    for name in ("relu", "gelu"):
        x = torch.tensor([-3.0, -1.0, 1.0, 3.0], requires_grad=True)
        (gradient,) = torch.autograd.grad(getattr(F, name)(x).sum(), x)
        values = " ".join(f"{g:7.4f}" for g in gradient)
        print(f"  {name}: {values}; {dead_neurons(name):.0%} of neurons never learn again")


def main() -> None:
    torch.manual_seed(0)
    show_statistics()
    show_neighbours()
    show_shift()
    show_dropout()
    show_dead_gradients()


if __name__ == "__main__":
    main()
