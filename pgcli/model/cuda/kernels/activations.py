"""GELU, GeGLU and softcap."""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pgcli.model.cuda import plain
from pgcli.model.cuda.kernels.norms import row_scale
from pgcli.model.quantize import FLOAT8, MAX_VALUE

ELEMENTS_AT_ONCE = 1024
COLUMNS_AT_ONCE = 4096  # if the row is read twice
MAX_COLUMNS_HELD = 16384  # if the row is held in registers
#: Major compute capabilities on which GELU in the epilogue of cuBLASLt's product saves time.
GELU_EPILOGUE = (8, 9)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    is_fast = x.dtype == torch.bfloat16 and x.is_cuda
    if not is_fast or torch.cuda.get_device_capability(x.device)[0] not in GELU_EPILOGUE:
        return plain.linear_gelu(x, weight, bias)
    rows = torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True)
    return rows.view(*x.shape[:-1], len(weight))


def geglu(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    inner = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], inner)
    grid = (gate_up.numel() // (2 * inner), triton.cdiv(inner, ELEMENTS_AT_ONCE))
    _geglu[grid](gate_up, out, inner, ELEMENTS_AT_ONCE)
    return out


@triton.jit
def _geglu(gate_up_ptr, out_ptr, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    out = _gated(gate_up_ptr + row * 2 * inner, column, inner)
    tl.store(out_ptr + row * inner + column, out, mask=column < inner)


@triton.jit
def _gated(row_ptr, column, inner):
    """GELU of the columns in a row's first half, times the second half's; 0 beyond them."""
    inside = column < inner
    gate = tl.load(row_ptr + column, mask=inside, other=0.0)
    up = tl.load(row_ptr + inner + column, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    # 0.5 * x * (1 + tanh(u)) is x * sigmoid(2 * u)
    twice = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    # rounded before it is multiplied, as by separate operations
    gelu = (x * tl.sigmoid(twice)).to(gate.dtype).to(tl.float32)
    return (gelu * up.to(tl.float32)).to(gate.dtype)


def geglu_quantized(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    gate_up = gate_up.contiguous()
    inner = gate_up.shape[-1] // 2
    quantized = gate_up.new_empty(*gate_up.shape[:-1], inner, dtype=FLOAT8)
    scale = gate_up.new_empty(*gate_up.shape[:-1], 1, dtype=torch.float32)
    columns = triton.next_power_of_2(inner)
    is_held = columns <= MAX_COLUMNS_HELD
    _geglu_quantized[(scale.numel(),)](
        *(gate_up, quantized, scale, inner, MAX_VALUE[FLOAT8]),
        *(columns if is_held else COLUMNS_AT_ONCE, is_held),
        num_warps=8,
    )
    return quantized, scale


@triton.jit
def _geglu_quantized(
    gate_up_ptr,
    quantized_ptr,
    scale_ptr,
    inner,
    max_quantized,
    BLOCK: tl.constexpr,
    IS_HELD: tl.constexpr,
):
    """Quantizing needs the row's largest value: the row stays in registers, or is read twice."""
    row = tl.program_id(0).to(tl.int64)
    if IS_HELD:
        column = tl.arange(0, BLOCK)
        out = _gated(gate_up_ptr + row * 2 * inner, column, inner).to(tl.float32)
        scale = row_scale(tl.max(tl.abs(out), axis=0), tl.sum(out, axis=0), max_quantized)
        tl.store(scale_ptr + row, scale)
        quantized = (out / scale).to(quantized_ptr.dtype.element_ty)
        tl.store(quantized_ptr + row * inner + column, quantized, mask=column < inner)
    else:
        largest, total = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, inner, BLOCK):
            column = start + tl.arange(0, BLOCK)
            out = _gated(gate_up_ptr + row * 2 * inner, column, inner).to(tl.float32)
            largest, total = tl.maximum(largest, tl.abs(out)), total + out
        scale = row_scale(tl.max(largest, axis=0), tl.sum(total, axis=0), max_quantized)
        tl.store(scale_ptr + row, scale)
        for start in range(0, inner, BLOCK):
            column = start + tl.arange(0, BLOCK)
            out = _gated(gate_up_ptr + row * 2 * inner, column, inner).to(tl.float32)
            quantized = (out / scale).to(quantized_ptr.dtype.element_ty)
            tl.store(quantized_ptr + row * inner + column, quantized, mask=column < inner)


def softcap(x: Tensor, cap: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x, dtype=torch.float32)
    grid = (triton.cdiv(x.numel(), ELEMENTS_AT_ONCE),)
    _softcap[grid](x, out, x.numel(), cap, ELEMENTS_AT_ONCE)
    return out


@triton.jit
def _softcap(x_ptr, out_ptr, count, cap, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < count, other=0.0).to(tl.float32)
    tl.store(out_ptr + index, capped(x, cap), mask=index < count)


@triton.jit
def capped(x, cap):
    """`cap * tanh(x / cap)`."""
    return cap * (2 * tl.sigmoid(2 * x / cap) - 1)
