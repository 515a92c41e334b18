"""The MLP of a decoder layer with weights and activations of 8 bits, for GPUs.

M rows of any kind · N output width · D input width
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

import pgcli.model.cuda.operators  # noqa: F401, registers torch.ops.pgcli
from pgcli.model.gemma import GemmaDecoderLayer, GemmaMLP
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.levels import quantize_per_channel, row_levels

#: The dtypes of levels by the names of `--quantize`.
LEVELS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class LevelLinear(nn.Module):
    """A linear layer of levels by levels; weights have a scale for each output channel."""

    def __init__(self, weight_ND: Tensor, dtype: torch.dtype):
        super().__init__()
        self.out_dtype = weight_ND.dtype
        self.level_ND: Tensor
        self.scale_N: Tensor
        level_ND, scale_N = quantize_per_channel(weight_ND, dtype)
        self.register_buffer("level_ND", level_ND)
        self.register_buffer("scale_N", scale_N)

    def forward(self, level: Tensor, scale: Tensor) -> Tensor:
        """The product (..., N) of levels (..., D) whose rows have these scales (..., 1)."""
        level_MD, scale_M1 = level.flatten(0, -2), scale.flatten(0, -2)
        if level.dtype == torch.int8:
            out_MN: Tensor = torch.ops.pgcli.int8_product(
                level_MD, scale_M1, self.level_ND, self.scale_N, self.out_dtype
            )
        else:
            out_MN = torch._scaled_mm(
                level_MD,
                self.level_ND.T,
                scale_a=scale_M1,
                scale_b=self.scale_N[None],
                out_dtype=self.out_dtype,
                use_fast_accum=True,  # sums in the tensor cores' own width, as is usual
            )
        return out_MN.view(*level.shape[:-1], -1)


class LevelMLP(nn.Module):
    """Replaces a `GemmaMLP`; `of_levels` takes an input that is quantized already."""

    def __init__(self, mlp: GemmaMLP, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.gate_up_proj = LevelLinear(mlp.gate_up_proj.weight, dtype)
        self.down_proj = LevelLinear(mlp.down_proj.weight, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.of_levels(*row_levels(x, self.dtype))

    def of_levels(self, level: Tensor, scale: Tensor) -> Tensor:
        gate_up = self.gate_up_proj(level, scale)
        out: Tensor = self.down_proj(*torch.ops.pgcli.geglu_levels(gate_up, self.dtype))
        return out


def quantize_mlps(model: PaliGemma, quantize: str) -> None:
    """Replace the decoder's MLPs, in place; the old weights are freed one by one.

    They are nine tenths of the decoder's products. Attention, the LM head and the vision tower stay
    as they are.
    """
    for layer in cast(Iterable[GemmaDecoderLayer], model.decoder.layers):
        layer.add_module("mlp", LevelMLP(layer.mlp, LEVELS[quantize]))
