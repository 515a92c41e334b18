"""The MLP of a decoder layer with float8 weights and activations, for GPUs.

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
from pgcli.model.quantized.quantize import FLOAT8, quantize_per_channel, quantize_per_row


class QuantizedLinear(nn.Module):
    """A linear layer of float8 inputs and weights, with a weight scale for each output channel."""

    def __init__(self, weight_ND: Tensor):
        super().__init__()
        self.out_dtype = weight_ND.dtype
        self.quantized_ND: Tensor
        self.scale_N: Tensor
        quantized_ND, scale_N = quantize_per_channel(weight_ND, FLOAT8)
        self.register_buffer("quantized_ND", quantized_ND)
        self.register_buffer("scale_N", scale_N)

    def forward(self, quantized: Tensor, scale: Tensor) -> Tensor:
        """The product (..., N) of quantized inputs (..., D) with scales (..., 1) of rows."""
        out_MN = torch._scaled_mm(
            quantized.flatten(0, -2),
            self.quantized_ND.T,
            scale_a=scale.flatten(0, -2),
            scale_b=self.scale_N[None],
            out_dtype=self.out_dtype,
            use_fast_accum=True,  # the tensor cores' own accumulator, the usual choice
        )
        return out_MN.view(*quantized.shape[:-1], -1)


class QuantizedMLP(nn.Module):
    """Replaces a `GemmaMLP`; `forward_quantized` takes an already quantized input."""

    def __init__(self, mlp: GemmaMLP):
        super().__init__()
        self.gate_up_proj = QuantizedLinear(mlp.gate_up_proj.weight)
        self.down_proj = QuantizedLinear(mlp.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_quantized(*quantize_per_row(x, FLOAT8))

    def forward_quantized(self, quantized: Tensor, scale: Tensor) -> Tensor:
        gate_up = self.gate_up_proj(quantized, scale)
        out: Tensor = self.down_proj(*torch.ops.pgcli.geglu_quantized(gate_up))
        return out


def quantize_mlps(model: PaliGemma) -> None:
    """Replace the decoder's MLPs, in place; the old weights are freed one by one.

    They are nine tenths of the decoder's products. Attention, the LM head and the vision tower
    are unchanged.
    """
    for layer in cast(Iterable[GemmaDecoderLayer], model.decoder.layers):
        quantize_mlp(layer)


def quantize_mlp(layer: GemmaDecoderLayer) -> None:
    """Replace a decoder layer's MLP, in place; the old weights are freed."""
    layer.add_module("mlp", QuantizedMLP(layer.mlp))
