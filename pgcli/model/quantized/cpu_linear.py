"""Linear layers in int8 on CPUs: weights quantized per output channel, activations per token.

M rows of any kind · D input width · N output width
"""

from __future__ import annotations

import torch
from torch import Tensor

from pgcli.model.cpu.packed_linear import PACK_ROWS, PackedLinearKernel, is_decode
from pgcli.model.cpu.processor import LinearKernel, has_tiles, works
from pgcli.model.quantized.quantize import MAX_VALUE, MIN_SCALE, quantize_per_channel

#: A token's scale is rounded to the activations' dtype; a maximum of 126 keeps values below 128.
MAX_TOKEN_VALUE = MAX_VALUE[torch.int8] - 1
SIGN_BIT = 128


class Int8LinearKernel(LinearKernel):
    """A linear layer with int8 weights, int8 activations and int32 sums.

    Weights have one scale per output channel. Activations have one per token, computed at each
    call.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        quantized_ND, self._scale_N = quantize_per_channel(weight_ND)
        shape = [PACK_ROWS, weight_ND.shape[1]]
        self._weight = torch.ops.onednn.qlinear_prepack(quantized_ND, shape)
        self._zero_N = torch.zeros(len(weight_ND), dtype=torch.long)
        # VNNI multiplies unsigned by signed bytes; for two signed ones oneDNN has only a reference
        # kernel, which is thousands of times slower. Tiles multiply either.
        self._is_unsigned = not has_tiles()
        # without AVX-512, oneDNN writes bfloat16 by its reference kernel
        self._writes_bfloat16 = works(PackedLinearKernel, torch.bfloat16)
        self._one, self._zero = torch.ones(1), torch.zeros(1, dtype=torch.long)
        if self._is_unsigned:
            self._zero.fill_(SIGN_BIT)
        self._bias = bias_N

    def __call__(self, x_MD: Tensor) -> Tensor:
        quantized_MD, scale_M1 = quantize_per_token(x_MD)
        out = self._channel_scaled(quantized_MD, x_MD.dtype).mul_(scale_M1)
        return out if self._bias is None else out.add_(self._bias)

    def forward_fp32(self, x_MD: Tensor) -> Tensor:
        """The output in float32, not rounded to the dtype of `x`, without the bias."""
        quantized_MD, scale_M1 = quantize_per_token(x_MD.float())
        return self._channel_scaled(quantized_MD, torch.float32).mul_(scale_M1)

    def _channel_scaled(self, quantized_MD: Tensor, dtype: torch.dtype) -> Tensor:
        """The product of the quantized values, times the scales of the output channels only.

        Changes its arguments in-place.
        """
        if self._is_unsigned:
            quantized_MD = quantized_MD.view(torch.uint8).bitwise_xor_(SIGN_BIT)  # adds 128
        out: Tensor = torch.ops.onednn.qlinear_pointwise.tensor(
            quantized_MD,
            self._one,
            self._zero,
            self._weight,
            self._scale_N,
            self._zero_N,
            None,
            1.0,
            0,
            dtype if self._writes_bfloat16 else torch.float32,
            "none",
            [],
            "",
        )
        return out.to(dtype)


class Int8DecodeLinearKernel(LinearKernel):
    """Int8 weights for decode steps, packed weights for prefill; takes 1.5 times the memory.

    A decode step is bound by reading the weights, and int8 halves them. A prefill is bound by
    arithmetic, and a CPU with bfloat16 tiles (AMX) finishes it sooner than activations can be
    quantized.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        self._decode = Int8LinearKernel(weight_ND, bias_N)
        self._prefill = PackedLinearKernel(weight_ND, bias_N)

    def __call__(self, x_MD: Tensor) -> Tensor:
        return self._chosen(x_MD)(x_MD)

    def gelu(self, x_MD: Tensor) -> Tensor:
        return self._chosen(x_MD).gelu(x_MD)

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        return self._chosen(x_MD).mul(x_MD, other_MN)

    def _chosen(self, x_MD: Tensor) -> LinearKernel:
        return self._decode if is_decode(x_MD) else self._prefill


def quantize_per_token(x_MD: Tensor) -> tuple[Tensor, Tensor]:
    """The int8 values (M, D) of every token, within 127 of zero, and its scale (M, 1)."""
    largest_M1 = x_MD.abs().amax(-1, keepdim=True).float()
    scale_M1 = largest_M1.div_(MAX_TOKEN_VALUE).clamp_(min=MIN_SCALE).to(x_MD.dtype)
    return x_MD.float().mul(scale_M1.float().reciprocal()).round_().to(torch.int8), scale_M1
