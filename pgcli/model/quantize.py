"""Quantizes values to 8 bits: int8 or float8, with a scale for each row.

M rows of any kind · N output width · D input width
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
#: The largest quantized value of each dtype.
MAX_VALUE = {torch.int8: 127.0, FLOAT8: 448.0}
MIN_SCALE = 1e-12
VALUES_AT_ONCE = 2**20  # converted to float32 at a time, to fit into a CPU's caches


def quantize_per_row(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The quantized `x` (..., D), and the scale (..., 1) of each row in float32.

    A row with a value that is not finite gives NaN products.
    """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).div_(MAX_VALUE[dtype]).clamp_(min=MIN_SCALE)
    quantized = wide / scale
    return (quantized.round_() if dtype == torch.int8 else quantized).to(dtype), scale


def quantize_per_channel(
    weight_ND: Tensor, dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """The quantized weight (N, D), and the scale (N,) of each output channel in float32."""
    quantized_ND = torch.empty(weight_ND.shape, dtype=dtype, device=weight_ND.device)
    scale_N = torch.empty(len(weight_ND), device=weight_ND.device)
    channels = max(1, VALUES_AT_ONCE // weight_ND.shape[1])
    for start in range(0, len(weight_ND), channels):
        block = slice(start, start + channels)
        quantized_ND[block], scale_N1 = quantize_per_row(weight_ND[block].detach(), dtype)
        scale_N[block] = scale_N1[:, 0]
    return quantized_ND, scale_N
