"""Products in eight bits: weights by output channel, activations by token, sums in 32 bits.

M rows of any kind · D width · N width of what comes out
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.cpu.packed_linear import PACK_ROWS, PackedLinear, is_decode

LEVELS = 127
#: A token's scale is rounded to its dtype: with one level less than there are, none is passed.
SAFE_LEVELS = LEVELS - 1
CHANNELS_AT_ONCE = 8192  # in float32 on the way: a head of 257k would take two gigabytes
LEAST_SCALE = 1e-12  # of a token or a channel of zeros


class Int8Linear:
    """A product whose weights are eight bits wide, rounded to 127 levels either side of zero.

    Each output channel has its own scale, and so has every token, found when it comes.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        level_ND = torch.empty(weight_ND.shape, dtype=torch.int8)
        self._scale_N = torch.empty(len(weight_ND))
        for start in range(0, len(weight_ND), CHANNELS_AT_ONCE):
            block = slice(start, start + CHANNELS_AT_ONCE)
            weight = weight_ND[block].float()
            scale_N1 = weight.abs().amax(1, keepdim=True).div_(LEVELS).clamp_(min=LEAST_SCALE)
            level_ND[block] = (weight / scale_N1).round_().to(torch.int8)
            self._scale_N[block] = scale_N1[:, 0]
        shape = [PACK_ROWS, weight_ND.shape[1]]
        self._weight = torch.ops.onednn.qlinear_prepack(level_ND, shape)
        self._zero_N = torch.zeros(len(weight_ND), dtype=torch.long)
        self._one, self._zero = torch.ones(1), torch.zeros(1, dtype=torch.long)
        self._bias = bias_N

    def __call__(self, x_MD: Tensor) -> Tensor:
        level_MD, scale_M1 = quantize_per_token(x_MD)
        out = self._sums(level_MD, x_MD.dtype).mul_(scale_M1)
        return out if self._bias is None else out.add_(self._bias)

    def gelu(self, x_MD: Tensor) -> Tensor:
        return F.gelu(self(x_MD), approximate="tanh")

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        return self(x_MD).mul_(other_MN)

    def forward_fp32(self, x_MD: Tensor) -> Tensor:
        """The product in float32, as sums of 32 bits allow."""
        level_MD, scale_M1 = quantize_per_token(x_MD.float())
        return self._sums(level_MD, torch.float32).mul_(scale_M1)

    def _sums(self, level_MD: Tensor, dtype: torch.dtype) -> Tensor:
        """The product of levels, times the channels' scales alone."""
        out: Tensor = torch.ops.onednn.qlinear_pointwise.tensor(
            level_MD,
            self._one,
            self._zero,
            self._weight,
            self._scale_N,
            self._zero_N,
            None,
            1.0,
            0,
            dtype,
            "none",
            [],
            "",
        )
        return out


class Int8DecodeLinear(Int8Linear):
    """Eight bits where every row has one slot; where prompts are read, the weights laid out.

    A step takes as long as its weights take to be read, and half of them are read in half the time.
    Where prompts are read the time goes into sums; a processor with tiles for bfloat16 makes these
    sooner than activations can be rounded and scaled. It keeps both, one and a half times the room.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        super().__init__(weight_ND, bias_N)
        self._many = PackedLinear(weight_ND, bias_N)

    def __call__(self, x_MD: Tensor) -> Tensor:
        return super().__call__(x_MD) if is_decode(x_MD) else self._many(x_MD)

    def gelu(self, x_MD: Tensor) -> Tensor:
        return super().gelu(x_MD) if is_decode(x_MD) else self._many.gelu(x_MD)

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        return super().mul(x_MD, other_MN) if is_decode(x_MD) else self._many.mul(x_MD, other_MN)


def quantize_per_token(x_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Every token in 127 levels either side of zero, and its scale (M, 1) in its own dtype."""
    largest_M1 = x_MD.abs().amax(-1, keepdim=True).float()
    scale_M1 = largest_M1.div_(SAFE_LEVELS).clamp_(min=LEAST_SCALE).to(x_MD.dtype)
    return x_MD.float().mul(scale_M1.float().reciprocal()).round_().to(torch.int8), scale_M1


@cache
def can_quantize(dtype: torch.dtype) -> bool:
    """Whether this PyTorch multiplies eight bits on this processor, and rightly: a trial tells."""
    draws = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(64, 64, generator=draws).to(dtype) for _ in range(2))
    try:
        found = Int8Linear(weight)(x).float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    wanted = F.linear(x.float(), weight.float())
    return bool((found - wanted).norm() < 0.03 * wanted.norm())
