"""Linear layers that store bfloat16 or int8 weights and multiply in float32, on any processor.

M rows of any kind · D input width · N output width
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.attention import at_least_float32
from pgcli.model.cpu.packed_linear import gelu_
from pgcli.model.cpu.processor import LinearKernel, reads_int8
from pgcli.model.quantized.quantize import quantize_per_channel

#: Weights are converted in blocks of so many channels, which fit into the cores' caches: for each
#: thread where rows are few, else for all, as every block reads all rows.
CHANNELS_A_THREAD, MOST_CHANNELS, FEW_ROWS = 64, 512, 64
#: Up to so many rows, PyTorch's kernel that reads the weights as they are stored is faster.
FEW_BFLOAT16_ROWS, FEW_INT8_ROWS = 4, 16
INT8_WIDTH = 16  # the kernel reads beyond widths that are no multiple of this


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
