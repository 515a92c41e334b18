"""Linear layers with weights that are packed once in oneDNN's layout for this CPU.

Weights in PyTorch's layout are reordered at every call, which takes longer than the
multiplication itself if the input has few rows.

B rows · L slots · M rows of any kind · D input width · N output width
"""

from __future__ import annotations

import torch
from torch import Tensor

from pgcli.model.cpu.processor import LinearKernel, has_avx512

PACK_ROWS = 256  # the layout is optimal for this row count; other row counts work too
GELU_VALUES = 2**16  # at a time, to fit into a core's cache
GELU_SCALE, GELU_CUBE = 1.5957691216057308, 0.044715  # 2 * sqrt(2 / pi), and the paper's factor


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
