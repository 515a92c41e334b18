"""Frozen int8 linear layers below trained adapters: half the memory of bfloat16.

Weights have one scale per output channel; inputs and sums keep their dtype, on every device.

M rows of any kind · L slots · D input width · N output width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.gemma import GemmaDecoderLayer, QKVProjection
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.quantize import quantize_per_channel


class _Int8Product(torch.autograd.Function):
    """`x @ weight.T` with a gradient for `x`; the weight in `x`'s dtype is not kept."""

    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, quantized_ND: Tensor, scale_N: Tensor) -> Tensor:
        ctx.save_for_backward(quantized_ND, scale_N)
        return (F.linear(x_MD, quantized_ND.to(x_MD.dtype)) * scale_N).to(x_MD.dtype)

    @staticmethod
    def backward(ctx: Any, grad_MN: Tensor) -> tuple[Tensor, None, None]:
        quantized_ND, scale_N = ctx.saved_tensors
        scaled_MN = (grad_MN * scale_N).to(grad_MN.dtype)
        return scaled_MN @ quantized_ND.to(grad_MN.dtype), None, None


class Int8FrozenLinear(nn.Module):
    """Replaces a frozen linear layer without a bias."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        quantized_ND, scale_N = quantize_per_channel(linear.weight)
        self.register_buffer("quantized_ND", quantized_ND)
        self.register_buffer("scale_N", scale_N)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Int8Product.apply(x, self.quantized_ND, self.scale_N)  # type: ignore[no-untyped-call]
        return product


class Int8FrozenQKVProjection(Int8FrozenLinear):
    """Replaces a `QKVProjection`."""

    def __init__(self, linear: QKVProjection):
        super().__init__(linear)
        self.split_sizes = linear.split_sizes

    def last_query(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """`QKVProjection.last_query`, but with queries computed for all slots."""
        query, key_value = torch.split_with_sizes(self(x_BLD), self.split_sizes, dim=-1)
        return query[:, -1:], key_value


def freeze_in_int8(_model: PaliGemma, part: nn.Module) -> None:
    """Replace the linear layers of one of the model's `parts` by int8 ones, in place.

    Only the decoder's layers change: embedding, LM head and vision tower stay as they are.
    """
    if not isinstance(part, GemmaDecoderLayer):
        return
    attention, mlp = part.self_attn, part.mlp
    attention.add_module("qkv_proj", Int8FrozenQKVProjection(attention.qkv_proj))
    attention.add_module("o_proj", Int8FrozenLinear(attention.o_proj))
    mlp.add_module("gate_up_proj", Int8FrozenLinear(mlp.gate_up_proj))
    mlp.add_module("down_proj", Int8FrozenLinear(mlp.down_proj))
