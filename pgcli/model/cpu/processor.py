"""What this processor's kernels can do: the program and its tests ask only here.

The limits that oneDNN reads from `ONEDNN_MAX_CPU_ISA` and PyTorch from `ATEN_CPU_CAPABILITY` hold
here too, unlike in `torch.cpu`, so an older processor can be simulated.

M rows of any kind · D input width · N output width
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

#: int8 rounds both sides to 1/127, which changes outputs by 1 %; wrong kernels are far off.
TOLERANCE = 0.03


class LinearKernel(ABC):
    """A linear layer (M, D) to (M, N) with fixed weights, and the operations fused with it."""

    @abstractmethod
    def __call__(self, x_MD: Tensor) -> Tensor: ...

    def gelu(self, x_MD: Tensor) -> Tensor:
        """The output after GELU in its tanh approximation."""
        return F.gelu(self(x_MD), approximate="tanh")

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        """The output times `other`, elementwise."""
        return self(x_MD).mul_(other_MN)


#: Makes a kernel from a weight (N, D) and a bias (N,) or None.
KernelFactory = Callable[[Tensor, Tensor | None], LinearKernel]


@cache
def works(make_kernel: KernelFactory, dtype: torch.dtype) -> bool:
    """Whether oneDNN computes a kernel of this kind in this dtype correctly on this processor.

    The operators are private to PyTorch's compiler, so they are tried once on a small example.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(64, 64, generator=generator).to(dtype) for _ in range(2))
    x[0], weight[0] = 1, 1  # in int8 the largest values, whose sums of two saturate without VNNI
    product = F.linear(x.float(), weight.float())
    try:
        kernel = make_kernel(weight, None)
        outputs = [kernel(x), kernel.gelu(x), kernel.mul(x, product.to(dtype))]
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    expected = [product, F.gelu(product, approximate="tanh"), product * product]
    return all(
        bool((output.float() - reference).norm() < TOLERANCE * reference.norm())
        for output, reference in zip(outputs, expected, strict=True)
    )


@cache
def has_avx512() -> bool:
    """Whether PyTorch's own kernels use AVX-512."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def reads_int8() -> bool:
    """Whether PyTorch's kernel multiplies bfloat16 by int8 weights; without AVX2 it may crash."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@cache
def has_tiles() -> bool:
    """Whether oneDNN multiplies bfloat16 and int8 in tiles (AMX)."""
    return _allows("AMX") and torch.cpu._is_amx_tile_supported()


@cache
def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AMX or AVX512-BF16)."""
    is_native = _allows("AMX", "BF16", "FP16") and torch.cpu._is_avx512_bf16_supported()
    return has_avx512() and (has_tiles() or is_native)


def _allows(*extensions: str) -> bool:
    """Whether oneDNN may use one of these extensions, by the limit that its user has set."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper()
    return limit in ("DEFAULT", "ALL") or any(extension in limit for extension in extensions)
