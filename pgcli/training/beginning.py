"""How a training begins: random weights, the optimizer, the learning rate of each step.

P patches · D width
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pgcli.model.paligemma import PaliGemma


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate: it climbs, stays, and falls to nothing over the last `decay` steps.

    Since it stays, a run's length may still be changed while it goes on.
    """

    steps: int
    warmup: int
    decay: int
    rate: float

    def at(self, step: int) -> float:
        climbing = (step + 1) / self.warmup
        falling = (self.steps - step) / self.decay
        return self.rate * max(0.0, min(1.0, climbing, falling))


def initialise(model: PaliGemma, seed: int) -> None:
    """Fill the parameters with random numbers under which signals neither grow nor fade."""
    generator = torch.Generator().manual_seed(seed)

    def fill(weight: Tensor, std: float) -> None:
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)

    depths = {"vision": model.config.vision.depth, "decoder": model.config.decoder.depth}
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.endswith("position_embedding"):
                module.weight.copy_(waves(*module.weight.shape))
            elif isinstance(module, nn.Embedding):
                fill(module.weight, module.embedding_dim**-0.5)
            elif isinstance(module, nn.Linear | nn.Conv2d):
                joins = name.endswith(("o_proj", "out_proj", "down_proj", "fc2"))
                branches = 2 * depths.get(name.split(".")[0], 1) if joins else 1
                fill(module.weight, (module.weight[0].numel() * branches) ** -0.5)
                if module.bias is not None:
                    module.bias.zero_()
            if name.endswith("self_attn") and name.startswith("vision"):
                _look_alike(module.qkv_proj.weight)


def _look_alike(qkv_weight: Tensor) -> None:
    """Let queries start out as keys, so that a patch looks first at those like and near it.

    (Trockman and Kolter, "Mimetic initialization of self-attention layers", 2023.)
    """
    width = qkv_weight.shape[1]
    qkv_weight[width : 2 * width] = qkv_weight[:width]


def waves(patches: int, width: int) -> Tensor:
    """Sines and cosines of each patch's row and column (P, D): neighbours start out alike.

    From these a tower learns where things are far sooner than from random numbers.
    """
    across = math.isqrt(patches)
    place_P = torch.arange(patches)
    frequency = 1 / across ** (torch.arange(width // 4) / (width // 4))
    angles = [axis[:, None] * frequency for axis in (place_P // across, place_P % across)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)


def optimizer_for(*modules: nn.Module) -> torch.optim.AdamW:
    """AdamW that decays matrices only: norms, biases and embeddings keep their size."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for module in modules:
        for name, parameter in module.named_parameters():
            matrix = parameter.ndim > 1 and "embed" not in name
            (decayed if matrix else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
