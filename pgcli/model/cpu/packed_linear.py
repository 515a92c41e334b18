"""Linear layers with weights that are packed once in oneDNN's layout for this CPU.

Weights in PyTorch's layout are reordered at every call, which takes longer than the
multiplication itself if the input has few rows.

B rows · L slots · M rows of any kind · D input width · N output width
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

PACK_ROWS = 256  # the layout is optimal for this row count; other row counts work too


class LinearKernel(Protocol):
    """A linear layer (M, D) to (M, N) with fixed weights, and the operations fused with it."""

    def __call__(self, x_MD: Tensor) -> Tensor: ...

    def gelu(self, x_MD: Tensor) -> Tensor:
        """The output after GELU in its tanh approximation."""

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        """The output times `other`, elementwise."""


#: Makes a kernel from a weight (N, D) and a bias (N,) or None.
KernelFactory = Callable[[Tensor, Tensor | None], LinearKernel]


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


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch packs weights for this CPU with correct results.

    The operators are private to PyTorch's compiler, so they are checked on a small example.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(32, 32, generator=generator).to(dtype) for _ in range(2))
    product = F.linear(x, weight)
    try:
        kernel = PackedLinearKernel(weight)
        outputs = [kernel(x), kernel.gelu(x), kernel.mul(x, product)]
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    expected = [product, F.gelu(product, approximate="tanh"), product * product]
    return all(
        torch.allclose(output, reference, rtol=0.05, atol=0.05)
        for output, reference in zip(outputs, expected, strict=True)
    )


def is_decode(x: Tensor) -> bool:
    """Whether every row has one slot, (B, 1, D), as in a decode step."""
    return x.dim() == 3 and x.shape[1] == 1
