"""Values as levels of 8 bits: whole numbers in int8, or float8, and a scale for each row.

M rows of any kind · N output width · D input width
"""

from __future__ import annotations

import torch
from torch import Tensor

#: The largest level of each dtype.
MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
MIN_SCALE = 1e-12  # of a row of zeros
CHANNELS_AT_ONCE = 8192  # converted to float32 at a time: an LM head of 257k would take 2 GB


def row_levels(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The levels of `x` (..., D), and the scale (..., 1) of each row in float32.

    Products of a row with a value that is not finite are NaN.
    """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).div_(MOST[dtype]).clamp_(min=MIN_SCALE)
    level = wide / scale
    return (level.round_() if dtype == torch.int8 else level).to(dtype), scale


def quantize_per_channel(
    weight_ND: Tensor, dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """The levels (N, D) of a weight, and the scale (N,) of each output channel in float32."""
    level_ND = torch.empty(weight_ND.shape, dtype=dtype, device=weight_ND.device)
    scale_N = torch.empty(len(weight_ND), device=weight_ND.device)
    for start in range(0, len(weight_ND), CHANNELS_AT_ONCE):
        block = slice(start, start + CHANNELS_AT_ONCE)
        level_ND[block], scale_N1 = row_levels(weight_ND[block].detach(), dtype)
        scale_N[block] = scale_N1[:, 0]
    return level_ND, scale_N
