"""Initial weights of towers and classifiers that are trained without a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn

RESIDUAL = ("out_proj", "fc2")  # the last layers of a residual branch
POSITION_STD = 0.02


def init_towers(model: nn.Module, *, seed: int, scale: float = 0.0, bias: float = 0.0) -> None:
    """Fill the parameters with random numbers that keep the variance of activations.

    Kernels have the standard deviation 1 / sqrt(inputs) (LeCun), those that end a residual branch
    a smaller one by the square root of the number of branches (GPT-2). `scale`, a logarithm, and
    `bias` are those of two towers' logits.
    """
    generator = torch.Generator().manual_seed(seed)

    def fill(parameter: Tensor, std: float) -> None:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    with torch.no_grad():
        for name, module in model.named_modules():
            branches = 2 * _depth(model, name) if name.endswith(RESIDUAL) else 1
            if isinstance(module, nn.Linear | nn.Conv2d):
                fill(module.weight, (module.weight[0].numel() * branches) ** -0.5)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                fill(module.weight, POSITION_STD)
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
                module.bias.zero_()
        for name, parameter in model.named_parameters():
            if name.endswith(("probe", "class_embedding")):
                fill(parameter, POSITION_STD)
            elif name.endswith("in_proj_weight"):
                fill(parameter, parameter.shape[1] ** -0.5)
            elif name.endswith("in_proj_bias"):
                parameter.zero_()
            elif name == "logit_scale":
                parameter.fill_(scale)
            elif name == "logit_bias":
                parameter.fill_(bias)


def _depth(model: nn.Module, name: str) -> int:
    """The number of layers of the tower that the module is in; 1 outside of any."""
    tower = dict(model.named_modules()).get(name.split(".")[0])
    layers = getattr(tower, "layers", None)
    return len(layers) if layers is not None else 1
