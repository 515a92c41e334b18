"""Linear layers with weights that are packed once in oneDNN's layout for this CPU.

Weights in PyTorch's layout are reordered at every call, which takes longer than the
multiplication itself if the input has few rows.

B rows · L slots · M rows of any kind · D input width · N output width
"""

from __future__ import annotations

import torch
from torch import Tensor

PACK_ROWS = 256  # the layout is optimal for this row count; other row counts work too


class PackedLinearKernel:
    """A linear layer with its weights in oneDNN's layout.

    Fused operations read the sums before they are rounded to the weights' dtype.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_ND.contiguous(), PACK_ROWS)
        self._bias = bias_N

    def __call__(self, x_MD: Tensor) -> Tensor:
        return self._pointwise(x_MD, "none", "")

    def gelu(self, x_MD: Tensor) -> Tensor:
        return self._pointwise(x_MD, "gelu", "tanh")

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x_MD, other_MN, self._weight, self._bias, "mul"
        )
        return out

    def _pointwise(self, x_MD: Tensor, operation: str, algorithm: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_MD, self._weight, self._bias, operation, [], algorithm
        )
        return out


def is_decode(x: Tensor) -> bool:
    """Whether every row has one slot, (B, 1, D), as in a decode step."""
    return x.dim() == 3 and x.shape[1] == 1
