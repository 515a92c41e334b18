"""Norms, dropout and activations: which of them make an output depend on the rest of its batch.

    python examples/lessons/normalisation.py [--out DIR]

pgcli promises that batching is invisible: an answer does not depend on which images share its
batch. LayerNorm (vision tower) and RMSNorm (decoder) take their statistics from one vector, so they
keep the promise. BatchNorm takes them from the batch.

B images · D width
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.checkpoints.find import BUILTIN
from pgcli.model.config import DecoderConfig
from pgcli.model.gemma import GemmaMLP, RMSNorm

ROWS = torch.tensor([[0.0, 4.0], [-1.0, 7.0], [3.0, 5.0]])  # three vectors of two features
NORM = "language_model.model.layers.0.input_layernorm.weight"
EPS = 1e-6  # keeps the division finite if all values are equal


def layer_norm(x_BD: Tensor) -> Tensor:
    """Each vector minus its mean, divided by its standard deviation: mean 0 and variance 1."""
    centred = x_BD - x_BD.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()


def rms_norm(x_BD: Tensor) -> Tensor:
    """Each vector divided by the root of its mean square; the mean is not subtracted."""
    return x_BD / (x_BD.square().mean(-1, keepdim=True) + EPS).sqrt()


def batch_norm(x_BD: Tensor) -> Tensor:
    """Each feature minus its mean over the batch, divided by its standard deviation there."""
    centred = x_BD - x_BD.mean(0)
    return centred / (centred.square().mean(0) + EPS).sqrt()


#: The formulas and the modules of the same name from torch or pgcli, newly initialised.
NORMS = {
    "LayerNorm": (layer_norm, lambda width: nn.LayerNorm(width, eps=EPS)),
    "RMSNorm": (rms_norm, lambda width: RMSNorm(width, EPS)),
    "BatchNorm": (batch_norm, lambda width: nn.BatchNorm1d(width, eps=EPS)),
}


# %%
def show_layer_norm() -> None:
    print("three vectors", ROWS.int().tolist())
    means, deviations = ROWS.mean(1).tolist(), ROWS.std(1, correction=0).tolist()
    print("  LayerNorm: a mean and a deviation of each vector", means, deviations)
    norm = nn.LayerNorm(2, eps=EPS)
    print("  its weight and bias, as new", norm.weight.tolist(), norm.bias.tolist())
    norm.weight.data *= 4
    norm.bias.data += 1
    y = norm(ROWS)
    print(f"  times 4, plus 1: mean {y.mean(1)[0]:.2f}, deviation {y.std(1, correction=0)[0]:.2f}")
    deep = torch.randn(4, 3, 5, 2)  # any number of dimensions: the last one is normalized
    torch.testing.assert_close(norm(deep), norm(deep.flatten(0, 2)).view(deep.shape))
    linear = nn.Linear(2, 7)
    torch.testing.assert_close(linear(deep), linear(deep.flatten(0, 2)).view(4, 3, 5, 7))
    print("  a norm and a Linear of [4, 3, 5, 2] treat it as 60 vectors")
    plain = nn.LayerNorm(2, eps=EPS, elementwise_affine=False)
    print("  parameters without the affine map:", len(list(plain.parameters())))


# %%
@torch.no_grad()
def show_neighbours(width: int = 64) -> None:
    print("the first of eight vectors, whose neighbours change")
    x_BD = torch.randn(8, width)
    louder = torch.cat([x_BD[:1], 3 * x_BD[1:] + 1])  # other images after the same first
    for name, (formula, module) in NORMS.items():
        torch.testing.assert_close(formula(x_BD), module(width)(x_BD))
        change = (formula(x_BD)[0] - formula(louder)[0]).abs().max()
        assert (change == 0) == (name != "BatchNorm")
        print(f"  {name:<10} output changes by {change:.2f}")
    print("all values of a vector plus 500")
    for name, norm in {"LayerNorm": layer_norm, "RMSNorm": rms_norm}.items():
        y_BD = norm(x_BD[:1] + 500)  # RMSNorm does not centre
        print(f"  {name:<10} mean {y_BD.mean().abs():.3f}, deviation {y_BD.std(correction=0):.3f}")


# %%
def show_dropout() -> None:
    """Values become 0 with probability p; the others grow by 1/(1-p), so that the mean stays."""
    print("dropout of ones")
    for p in (0.1, 0.5):
        y = torch.ones(100_000) * (torch.rand(100_000) >= p) / (1 - p)
        assert set(nn.Dropout(p)(torch.ones(1000)).unique().tolist()) == set(y.unique().tolist())
        print(f"  p {p}: {(y == 0).float().mean():.2f} are 0, the others {y.max():.2f}")
    x = torch.randn(100)
    assert torch.equal(nn.Dropout(0.5).eval()(x), x)
    print("  in evaluation it is the identity")


def show_dead_gradients() -> None:
    """Neurons with a bias of -3, as after one step that was too large, on 256 images."""
    print("gradients at -3, -1, 1 and 3, and neurons that no image changes any more")
    for activation in (F.relu, F.gelu):
        x = torch.tensor([-3.0, -1.0, 1.0, 3.0], requires_grad=True)
        (gradient,) = torch.autograd.grad(activation(x).sum(), x)
        weight_ND = torch.nn.init.normal_(torch.empty(1000, 32), std=32**-0.5).requires_grad_()
        activation(F.linear(torch.randn(256, 32), weight_ND) - 3).sum().backward()
        dead = (weight_ND.grad.abs().amax(-1) == 0).float().mean()
        values = " ".join(f"{g:.3f}" for g in gradient)
        print(f"  {activation.__name__}: {values}; {dead:.0%} of neurons")


@torch.no_grad()
def show_gates() -> None:
    """Gemma's MLP is GeGLU, and its norms multiply by 1 + w."""
    mlp, x_BD = GemmaMLP(DecoderConfig(8, 1, 16, 1, 1, 8, 8)), torch.randn(4, 8)
    gate, up = mlp.gate_up_proj.weight.chunk(2)
    gated = F.gelu(x_BD @ gate.T, approximate="tanh") * (x_BD @ up.T)
    torch.testing.assert_close(mlp(x_BD), gated @ mlp.down_proj.weight.T)
    print("GeGLU, GELU of one product times another, equals pgcli's MLP")
    with safe_open(BUILTIN / "model.safetensors", "pt") as file:
        weight_D = file.get_tensor(NORM).float()
    norm = RMSNorm(len(weight_D), EPS)
    norm.weight.copy_(weight_D)
    x_D = torch.randn(len(weight_D))
    torch.testing.assert_close(norm(x_D), rms_norm(x_D) * (1 + weight_D))
    print(f"stored weights of a trained RMSNorm: {weight_D.min():.2f} ... {weight_D.max():.2f}")
    print(f"  times 1 + w: deviation {norm(x_D).std():.2f}; times w: ", end="")
    print(f"{(rms_norm(x_D) * weight_D).std():.2f}")


def main() -> None:
    torch.manual_seed(0)
    show_layer_norm()
    show_neighbours()
    show_dropout()
    show_dead_gradients()
    show_gates()


# %%
def figure():
    """Activations, GeGLU, and the weights of a trained RMSNorm."""
    from matplotlib import pyplot

    figure, (first, second, third) = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    x = torch.linspace(-4, 4, 200)
    first.plot(x, F.relu(x), label="ReLU")
    first.plot(x, F.gelu(x, approximate="tanh"), label="GELU")
    first.set(title="activations", xlabel="x", ylabel="output")
    for up in (-1.0, 0.5, 2.0):
        second.plot(x, F.gelu(x, approximate="tanh") * up, label=f"up = {up:g}")
    second.set(title="GeGLU: GELU(gate) * up", xlabel="gate", ylabel="output")
    with safe_open(BUILTIN / "model.safetensors", "pt") as file:
        weight_D = file.get_tensor(NORM).float()
    bins = torch.linspace(-0.5, 1.5, 41).tolist()
    third.hist(weight_D, bins, alpha=0.7, label="w, as stored")
    third.hist(1 + weight_D, bins, alpha=0.7, label="1 + w, as used")
    third.set(title="a trained RMSNorm", xlabel="factor", ylabel="features", ylim=(0, 100))
    for axes in (first, second, third):
        axes.legend()
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "normalisation.png", dpi=90)
