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
from pgcli.model.quantized.quantize import quantize_per_channel, quantize_per_row

#: The dtypes of quantized values by the names of `--quantize`.
QUANTIZED_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class QuantizedLinear(nn.Module):
    """A linear layer of 8-bit inputs and weights; weights have a scale for each output channel."""

    def __init__(self, weight_ND: Tensor, dtype: torch.dtype):
        super().__init__()
        self.out_dtype = weight_ND.dtype
        self.quantized_ND: Tensor
        self.scale_N: Tensor
        quantized_ND, scale_N = quantize_per_channel(weight_ND, dtype)
        self.register_buffer("quantized_ND", quantized_ND)
        self.register_buffer("scale_N", scale_N)

    def forward(self, quantized: Tensor, scale: Tensor) -> Tensor:
        """The product (..., N) of quantized inputs (..., D) with scales (..., 1) of rows."""
        quantized_MD, scale_M1 = quantized.flatten(0, -2), scale.flatten(0, -2)
        if quantized.dtype == torch.int8:
            out_MN: Tensor = torch.ops.pgcli.int8_product(
                quantized_MD, scale_M1, self.quantized_ND, self.scale_N, self.out_dtype
            )
        else:
            out_MN = torch._scaled_mm(
                quantized_MD,
                self.quantized_ND.T,
                scale_a=scale_M1,
                scale_b=self.scale_N[None],
                out_dtype=self.out_dtype,
                use_fast_accum=True,  # sums in the tensor cores' own width, as is usual
            )
        return out_MN.view(*quantized.shape[:-1], -1)


class QuantizedMLP(nn.Module):
    """Replaces a `GemmaMLP`; `forward_quantized` takes an input that is quantized already."""

    def __init__(self, mlp: GemmaMLP, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.gate_up_proj = QuantizedLinear(mlp.gate_up_proj.weight, dtype)
        self.down_proj = QuantizedLinear(mlp.down_proj.weight, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_quantized(*quantize_per_row(x, self.dtype))

    def forward_quantized(self, quantized: Tensor, scale: Tensor) -> Tensor:
        gate_up = self.gate_up_proj(quantized, scale)
        out: Tensor = self.down_proj(*torch.ops.pgcli.geglu_quantized(gate_up, self.dtype))
        return out


def quantize_mlps(model: PaliGemma, quantize: str) -> None:
    """Replace the decoder's MLPs, in place; the old weights are freed one by one.

    They are nine tenths of the decoder's products. Attention, the LM head and the vision tower stay
    as they are.
    """
    for layer in cast(Iterable[GemmaDecoderLayer], model.decoder.layers):
        layer.add_module("mlp", QuantizedMLP(layer.mlp, QUANTIZED_DTYPES[quantize]))
