"""Quantization to 8 bits with a scale for each row, and the product of int8 values.

M rows of any kind · N output width · D input width
"""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pgcli.model.quantized.quantize import MIN_SCALE

BLOCK_M, BLOCK_N, BLOCK_D = 128, 128, 128
ROWS_TOGETHER = tl.constexpr(8)  # blocks of rows that run together share the weights in a cache
LEAST = tl.constexpr(MIN_SCALE)
#: Adding and subtracting it rounds to a whole number, ties to even: 1.5 * 2**23.
NO_DIGITS = tl.constexpr(12582912.0)


@triton.jit
def row_scale(largest, total, most):
    """The scale of a row: NaN if a value is not finite, as their sum `total` is then."""
    return tl.maximum(largest / most, LEAST) + total * 0


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Whole numbers, those in the middle to the even one; or float8."""
    if dtype == tl.int8:
        x = (x + NO_DIGITS) - NO_DIGITS
    return x.to(dtype)


def int8_product(
    quantized_MD: Tensor,
    scale_M1: Tensor,
    weight_ND: Tensor,
    channel_scale_N: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    rows, inner = quantized_MD.shape
    columns = len(weight_ND)
    out_MN = torch.empty(rows, columns, dtype=dtype, device=quantized_MD.device)
    block = min(BLOCK_M, max(16, triton.next_power_of_2(rows)))
    grid = (triton.cdiv(rows, block) * triton.cdiv(columns, BLOCK_N),)
    _int8_product[grid](
        *(quantized_MD, scale_M1, weight_ND, channel_scale_N, out_MN, rows, columns, inner),
        *(block, BLOCK_N, BLOCK_D),
        num_warps=8 if block == BLOCK_M else 4,
    )
    return out_MN


@triton.jit
def _int8_product(
    quantized_ptr,
    scale_ptr,
    weight_ptr,
    channel_scale_ptr,
    out_ptr,
    rows,
    columns,
    inner,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """A block of the output: sums in int32, times the scales of rows and columns."""
    row_blocks, column_blocks = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    together = ROWS_TOGETHER * column_blocks
    first = tl.program_id(0) // together * ROWS_TOGETHER
    height = tl.minimum(row_blocks - first, ROWS_TOGETHER)
    place = tl.program_id(0) % together
    row = (first + place % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (place // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows, in_columns = row < rows, column < columns
    quantized_row = quantized_ptr + row.to(tl.int64)[:, None] * inner
    weight_row = weight_ptr + column.to(tl.int64)[None, :] * inner
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for start in range(0, inner, BLOCK_D):
        depth = start + tl.arange(0, BLOCK_D)
        inside = depth < inner
        quantized = tl.load(
            quantized_row + depth[None, :], mask=in_rows[:, None] & inside[None, :], other=0
        )
        weight = tl.load(
            weight_row + depth[:, None], mask=in_columns[None, :] & inside[:, None], other=0
        )
        total = tl.dot(quantized, weight, total)
    scale = tl.load(scale_ptr + row, mask=in_rows, other=0.0)
    channel_scale = tl.load(channel_scale_ptr + column, mask=in_columns, other=0.0)
    out = total.to(tl.float32) * scale[:, None] * channel_scale[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=in_rows[:, None] & in_columns)
