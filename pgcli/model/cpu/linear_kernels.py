"""Linear layers on CPUs: packed weights, compact ones, and int8 ones.

Weights in PyTorch's layout are reordered at every call, which takes longer than the product for few
rows; kernels keep them in the processor's layout.

B rows · L slots · M rows of any kind · D input width · N output width
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.attention import at_least_float32
from pgcli.model.cpu.processor import LinearKernel, has_avx512, has_tiles, reads_int8, works
from pgcli.model.quantize import MAX_VALUE, MIN_SCALE, quantize_per_channel

PACK_ROWS = 256  # the layout is optimal for this row count; other row counts work too
GELU_VALUES = 2**16  # at a time, to fit into a core's cache
GELU_SCALE, GELU_CUBE = 1.5957691216057308, 0.044715  # 2 * sqrt(2 / pi), and the paper's factor
#: Weights are converted in blocks of so many channels, which fit into the cores' caches: for each
#: thread where rows are few, else for all, as every block reads all rows.
CHANNELS_A_THREAD, MOST_CHANNELS, FEW_ROWS = 64, 512, 64
#: Up to so many rows, PyTorch's kernel that reads the weights as they are stored is faster.
FEW_BFLOAT16_ROWS, FEW_INT8_ROWS = 4, 16
INT8_WIDTH = 16  # the kernel reads beyond widths that are no multiple of this
#: A token's scale is rounded to the activations' dtype; a maximum of 126 keeps values below 128.
MAX_TOKEN_VALUE = MAX_VALUE[torch.int8] - 1
SIGN_BIT = 128


class PackedLinearKernel(LinearKernel):
    """A linear layer with its weights in oneDNN's layout.

    Fused operations read the sums before they are rounded to the weights' dtype. Without AVX-512,
    oneDNN's fused operations take up to twice as long as their parts.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_ND.contiguous(), PACK_ROWS)
        self._bias = bias_N

    def __call__(self, x_MD: Tensor) -> Tensor:
        return self._pointwise(x_MD, "none", "")

    def gelu(self, x_MD: Tensor) -> Tensor:
        return self._pointwise(x_MD, "gelu", "tanh") if has_avx512() else gelu_(self(x_MD))

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        if not has_avx512():
            return super().mul(x_MD, other_MN)
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x_MD, other_MN, self._weight, self._bias, "mul"
        )
        return out

    def _pointwise(self, x_MD: Tensor, operation: str, algorithm: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_MD, self._weight, self._bias, operation, [], algorithm
        )
        return out


def gelu_(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, which is `x * sigmoid(2 * u)`, in place."""
    for piece in torch.split(x.view(-1), GELU_VALUES):
        inner = (piece * piece).mul_(GELU_SCALE * GELU_CUBE).add_(GELU_SCALE).mul_(piece)
        piece.mul_(inner.sigmoid_())
    return x


def is_decode(x: Tensor) -> bool:
    """Whether every row has one slot, (B, 1, D), as in a decode step."""
    return x.dim() == 3 and x.shape[1] == 1


class CompactLinearKernel(LinearKernel):
    """A linear layer that shares its weights' memory; float32 ones are multiplied as they are."""

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        self._weight_ND, self._bias = weight_ND.detach(), bias_N

    def __call__(self, x_MD: Tensor) -> Tensor:
        return self.forward_fp32(x_MD).to(x_MD.dtype)

    def gelu(self, x_MD: Tensor) -> Tensor:
        return gelu_(self.forward_fp32(x_MD)).to(x_MD.dtype)

    def forward_fp32(self, x: Tensor) -> Tensor:
        """The output in float32; products of few rows are rounded to bfloat16."""
        x_MD = x.flatten(0, -2)
        out_MN = self._few(x_MD) if self._is_few(len(x_MD)) else self._in_blocks(x_MD.float())
        if self._bias is not None:
            out_MN.add_(self._bias)
        return out_MN.view(*x.shape[:-1], -1)

    def _is_few(self, rows: int) -> bool:
        return rows <= FEW_BFLOAT16_ROWS or self._weight_ND.dtype != torch.bfloat16

    def _few(self, x_MD: Tensor) -> Tensor:
        return at_least_float32(F.linear(x_MD.to(self._weight_ND.dtype), self._weight_ND))

    def _in_blocks(self, x_MD: Tensor) -> Tensor:
        """The product in float32, of one block of output channels after the other."""
        (channels, width), rows = self._weight_ND.shape, len(x_MD)
        size = MOST_CHANNELS if rows > FEW_ROWS else CHANNELS_A_THREAD * torch.get_num_threads()
        size = min(size, MOST_CHANNELS, channels)
        out_MN, block_ND = x_MD.new_empty(rows, channels), x_MD.new_empty(size, width)
        product_NM = x_MD.new_empty(size, rows)  # in this order, few rows are multiplied faster
        for start in range(0, channels, size):
            weight_ND = self._weight_ND[start : start + size]
            wide_ND = block_ND[: len(weight_ND)].copy_(weight_ND)
            product = torch.mm(wide_ND, x_MD.T, out=product_NM[: len(weight_ND)])
            out_MN[:, start : start + size] = product.T
        return out_MN


class CompactInt8LinearKernel(CompactLinearKernel):
    """A linear layer with int8 weights, and one scale per output channel."""

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        quantized_ND, self._scale_N = quantize_per_channel(weight_ND)
        super().__init__(quantized_ND, bias_N)
        self._one_N = torch.ones(len(quantized_ND), dtype=torch.bfloat16)

    def _is_few(self, rows: int) -> bool:
        is_readable = reads_int8() and self._weight_ND.shape[1] % INT8_WIDTH == 0
        return is_readable and rows <= FEW_INT8_ROWS

    def _few(self, x_MD: Tensor) -> Tensor:
        product_MN = torch._weight_int8pack_mm(x_MD.bfloat16(), self._weight_ND, self._one_N)
        return product_MN.float().mul_(self._scale_N)

    def _in_blocks(self, x_MD: Tensor) -> Tensor:
        return super()._in_blocks(x_MD).mul_(self._scale_N)


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
            quantized_MD = quantized_MD.view(torch.uint8).bitwise_xor_(SIGN_BIT)
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
