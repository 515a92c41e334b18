"""RMSNorm and LayerNorm, with a residual and a second norm before it, in one pass.

D width
"""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pgcli.model.quantize import FLOAT8, MAX_VALUE, MIN_SCALE

LEAST = tl.constexpr(MIN_SCALE)


@triton.jit
def row_scale(largest, total, most):
    """The scale of a row; NaN if a value is not finite, because `total` is not finite then."""
    return tl.maximum(largest / most, LEAST) + total * 0


def rms_norm(x: Tensor, scale_D: Tensor, eps: float) -> Tensor:
    normed = torch.empty_like(x)
    width = x.shape[-1]
    _norm[(x.numel() // width,)](
        *(x, x, scale_D, scale_D, x, normed, scale_D, width, eps, triton.next_power_of_2(width)),
        *(False, False, 0.0),
        num_warps=8,
    )
    return normed


def residual_norm(
    x: Tensor, delta: Tensor, post_scale_D: Tensor | None, scale_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return _residual_norm(x, delta, post_scale_D, scale_D, eps, x.dtype)[:2]


def residual_norm_quantized(
    x: Tensor,
    delta: Tensor,
    post_scale_D: Tensor | None,
    scale_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _residual_norm(x, delta, post_scale_D, scale_D, eps, FLOAT8, MAX_VALUE[FLOAT8])


def _residual_norm(
    x: Tensor,
    delta: Tensor,
    post_scale_D: Tensor | None,
    scale_D: Tensor,
    eps: float,
    dtype: torch.dtype,
    max_quantized: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    x, delta = x.contiguous(), delta.contiguous()
    total, normed = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    row_scales = scale_D
    if max_quantized:
        row_scales = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    post, has_post, width = post_scale_D, post_scale_D is not None, x.shape[-1]
    _norm[(x.numel() // width,)](
        *(x, delta, post if has_post else scale_D, scale_D, total, normed, row_scales, width, eps),
        *(triton.next_power_of_2(width), True, has_post, max_quantized),
        num_warps=8,
    )
    return total, normed, row_scales


@triton.jit
def _norm(
    x_ptr,
    delta_ptr,
    post_ptr,
    scale_ptr,
    total_ptr,
    normed_ptr,
    row_scale_ptr,
    width,
    eps,
    BLOCK: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_POST: tl.constexpr,
    MAX_QUANTIZED: tl.constexpr,
):
    """One row: x, plus delta (normalized first with HAS_POST), and the norm of the sum.

    With MAX_QUANTIZED, the norm is quantized to at most that value and stored with the row's scale.
    """
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + row + column, mask=inside, other=0.0)
        if HAS_POST:
            wide = delta.to(tl.float32)
            root = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
            post = tl.load(post_ptr + column, mask=inside, other=0.0)
            delta = (wide * root * post).to(x.dtype)
        # the sum is rounded before it is normalized, as by separate operations
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + row + column, x, mask=inside)
    wide = x.to(tl.float32)
    root = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    scale = tl.load(scale_ptr + column, mask=inside, other=0.0)
    normed = (wide * root * scale).to(x.dtype)
    if MAX_QUANTIZED > 0:
        wide = normed.to(tl.float32)
        divisor = row_scale(tl.max(tl.abs(wide), axis=0), tl.sum(wide, axis=0), MAX_QUANTIZED)
        tl.store(row_scale_ptr + tl.program_id(0), divisor)
        normed = (wide / divisor).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + row + column, normed, mask=inside)


def residual_layer_norm(
    x: Tensor, delta: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x, delta = x.contiguous(), delta.contiguous()
    total, normed, width = torch.empty_like(x), torch.empty_like(x), x.shape[-1]
    _residual_layer_norm[(x.numel() // width,)](
        *(x, delta, weight_D, bias_D, total, normed, width, eps, triton.next_power_of_2(width)),
        num_warps=4,
    )
    return total, normed


@triton.jit
def normed_halves(first, second, scale_ptr, eps, H: tl.constexpr, AXIS: tl.constexpr, dtype):
    """The two halves of heads, along this axis, after a norm of the whole heads."""
    half = tl.arange(0, H // 2)
    squares = tl.sum(first * first, axis=AXIS, keep_dims=True)
    squares += tl.sum(second * second, axis=AXIS, keep_dims=True)
    root = tl.rsqrt(squares / H + eps)
    scale_1, scale_2 = tl.load(scale_ptr + half), tl.load(scale_ptr + H // 2 + half)
    if AXIS == 1:
        scale_1, scale_2 = scale_1[None, :], scale_2[None, :]
    # the norm is rounded before it is rotated, as by separate operations
    first = (first * root * scale_1).to(dtype).to(tl.float32)
    return first, (second * root * scale_2).to(dtype).to(tl.float32)


@triton.jit
def _residual_layer_norm(
    x_ptr, delta_ptr, weight_ptr, bias_ptr, total_ptr, normed_ptr, width, eps, BLOCK: tl.constexpr
):
    """One row: x plus delta, and the norm of the sum, which is rounded first."""
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)
    delta = tl.load(delta_ptr + row + column, mask=inside, other=0.0)
    x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)
    tl.store(total_ptr + row + column, x, mask=inside)
    wide = x.to(tl.float32)
    centered = tl.where(inside, wide - tl.sum(wide, axis=0) / width, 0.0)
    root = tl.rsqrt(tl.sum(centered * centered, axis=0) / width + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = (centered * root * weight + bias).to(x.dtype)
    tl.store(normed_ptr + row + column, normed, mask=inside)
