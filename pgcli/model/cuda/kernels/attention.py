"""Attention of a decode step, with norm and rotation of queries and keys, and cache write.

B rows · X queries, keys and values of all heads · K key/value heads · G query heads per key/value
head · H head size · S slots
"""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from pgcli.model.cuda.kernels.activations import capped
from pgcli.model.cuda.kernels.norms import normed_halves

PROGRAMS = 256  # for few rows, slots are split until about as many programs run
MOST_SPLITS = 8
SLOTS_AT_ONCE = {2: 64, 4: 16}  # by the bytes of a value; more do not fit into shared memory
#: The interpreter cannot multiply matrices of bfloat16.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"  # in every version


def attend(
    qkv_BX: Tensor,
    position_B: Tensor,
    frequency: Tensor,
    key_BKSH: Tensor,
    value_BKSH: Tensor,
    mask_BS: Tensor,
    slot_B: Tensor,
    scale: float,
    cap: float,
    query_scale_H: Tensor | None,
    key_scale_H: Tensor | None,
    eps: float,
) -> Tensor:
    qkv_BX = qkv_BX.contiguous()
    rows, kv_heads, _, size = key_BKSH.shape
    groups = qkv_BX.shape[1] // size // kv_heads - 2
    splits = max(1, min(MOST_SPLITS, PROGRAMS // (rows * kv_heads)))
    out_BX = qkv_BX.new_empty(rows, kv_heads * groups * size)
    part, peak, total = out_BX, out_BX, out_BX
    if splits > 1:
        wide = {"dtype": torch.float32, "device": out_BX.device}
        part = torch.empty(rows, kv_heads, splits, groups, size, **wide)
        peak, total = torch.empty(2, rows, kv_heads, splits, groups, **wide)
    has_norm = query_scale_H is not None
    scales = (query_scale_H, key_scale_H) if has_norm else (frequency, frequency)
    _attend[(rows, kv_heads, splits)](
        *(qkv_BX, position_B, frequency, key_BKSH, value_BKSH, mask_BS, slot_B),
        *(*scales, part, peak, total, qkv_BX.stride(0), key_BKSH.stride(0), key_BKSH.stride(1)),
        *(mask_BS.stride(0), scale, cap, eps, kv_heads, groups, size),
        *(max(16, triton.next_power_of_2(groups)), SLOTS_AT_ONCE[qkv_BX.itemsize], splits),
        *(cap > 0, has_norm, IS_INTERPRETED),
        num_warps=4,
    )
    if splits > 1:
        _merge[(rows * kv_heads, groups)](
            part, peak, total, out_BX, groups, size, splits, triton.next_power_of_2(splits)
        )
    return out_BX


@triton.jit
def _attend(
    qkv_ptr,
    position_ptr,
    frequency_ptr,
    key_ptr,
    value_ptr,
    mask_ptr,
    slot_ptr,
    query_scale_ptr,
    key_scale_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    qkv_stride,
    row_stride,
    head_stride,
    mask_stride,
    scale,
    cap,
    eps,
    K: tl.constexpr,
    G: tl.constexpr,
    H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_NORM: tl.constexpr,
    DOT_FLOAT32: tl.constexpr,
):
    """One row, key/value head and part of the slots: rotate, store the new slot, and attend.

    The new slot's key and value come from `qkv`; the first part takes and stores them, the others
    read only earlier slots. Later slots are never read, however many are allocated.
    """
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slot, half = tl.load(slot_ptr + row), tl.arange(0, H // 2)
    dtype = key_ptr.dtype.element_ty
    angle = tl.load(position_ptr + row).to(tl.float32) * tl.load(frequency_ptr + half)
    cos = tl.cos(angle).to(dtype).to(tl.float32)
    sin = tl.sin(angle).to(dtype).to(tl.float32)
    qkv = qkv_ptr + row * qkv_stride
    query_1, query_2 = _rotated_queries(
        qkv + head * G * H, cos, sin, query_scale_ptr, eps, G, H, BLOCK_G, HAS_NORM, dtype
    )
    keys = key_ptr + row * row_stride + head * head_stride
    values = value_ptr + row * row_stride + head * head_stride
    peak = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    out = tl.zeros([BLOCK_G, H], tl.float32)
    if part == 0:
        score, value = _store_new_slot(
            *(qkv + (K * G + head) * H, keys + slot * H, values + slot * H),
            *(query_1, query_2, cos, sin, key_scale_ptr, eps, K, H, HAS_NORM, dtype),
        )
        peak = _scaled(score, scale, cap, HAS_CAP)
        total += 1
        out += value.to(tl.float32)[None, :]

    peak, total, out = _with_earlier_slots(
        *(peak, total, out, query_1, query_2, keys, values, mask_ptr + row * mask_stride, slot),
        *(part, scale, cap, H, BLOCK_S, SPLITS, HAS_CAP, dtype),
        tl.float32 if DOT_FLOAT32 else dtype,
    )
    at = ((row * K + head) * SPLITS + part) * G
    _store(out_ptr, peak_ptr, total_ptr, at, out, peak, total, G, H, BLOCK_G, SPLITS, dtype)


@triton.jit
def _rotated_queries(
    query_ptr,
    cos,
    sin,
    scale_ptr,
    eps,
    G: tl.constexpr,
    H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HAS_NORM: tl.constexpr,
    dtype: tl.constexpr,
):
    """The halves of the rotated queries of a key/value head, which are normalized first."""
    half, group = tl.arange(0, H // 2), tl.arange(0, BLOCK_G)
    in_group = (group < G)[:, None]
    query = query_ptr + group[:, None] * H + half[None, :]
    first = tl.load(query, mask=in_group, other=0.0).to(tl.float32)
    second = tl.load(query + H // 2, mask=in_group, other=0.0).to(tl.float32)
    if HAS_NORM:
        first, second = normed_halves(first, second, scale_ptr, eps, H, 1, dtype)
    return _rotated(first, second, cos, sin, dtype)


@triton.jit
def _with_earlier_slots(
    peak,
    total,
    out,
    query_1,
    query_2,
    keys,
    values,
    mask_ptr,
    slot,
    part,
    scale,
    cap,
    H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    dtype: tl.constexpr,
    factor: tl.constexpr,
):
    """The maximum, sum of weights and weighted sum after this part of the slots before `slot`."""
    length = tl.cdiv(tl.cdiv(slot, SPLITS), BLOCK_S) * BLOCK_S
    for start in range(part * length, tl.minimum(slot, (part + 1) * length), BLOCK_S):
        slots = start + tl.arange(0, BLOCK_S)
        before = slots < slot
        visible = tl.load(mask_ptr + slots, mask=before, other=0) != 0
        at = slots.to(tl.int64) * H
        score = _products(query_1, query_2, keys, at, before, H, factor)
        score = _scaled(score, scale, cap, HAS_CAP)
        score = tl.where(visible[None, :], score, float("-inf"))
        peak, total, out = _with_block(
            *(peak, total, out, score, values, at, before, H, dtype, factor)
        )
    return peak, total, out


@triton.jit
def _store(
    out_ptr,
    peak_ptr,
    total_ptr,
    at,
    out,
    peak,
    total,
    G: tl.constexpr,
    H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    SPLITS: tl.constexpr,
    dtype: tl.constexpr,
):
    """Store the outputs of a group of queries, or with several parts the input of `_merge`."""
    group, column = tl.arange(0, BLOCK_G), tl.arange(0, H)
    in_group = group < G
    at_out = (at + group)[:, None] * H + column[None, :]
    if SPLITS == 1:
        tl.store(out_ptr + at_out, (out / total[:, None]).to(dtype), mask=in_group[:, None])
    else:
        tl.store(out_ptr + at_out, out, mask=in_group[:, None])
        tl.store(peak_ptr + at + group, peak, mask=in_group)
        tl.store(total_ptr + at + group, total, mask=in_group)


@triton.jit
def _rotated(first, second, cos, sin, dtype: tl.constexpr):
    """The halves of heads, rotated by the angles and rounded."""
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)


@triton.jit
def _store_new_slot(
    new_ptr,
    key_ptr,
    value_ptr,
    query_1,
    query_2,
    cos,
    sin,
    scale_ptr,
    eps,
    K: tl.constexpr,
    H: tl.constexpr,
    HAS_NORM: tl.constexpr,
    dtype: tl.constexpr,
):
    """Store the new slot's rotated key and its value; return its scores and its value."""
    half, column = tl.arange(0, H // 2), tl.arange(0, H)
    first = tl.load(new_ptr + half).to(tl.float32)
    second = tl.load(new_ptr + H // 2 + half).to(tl.float32)
    if HAS_NORM:
        first, second = normed_halves(first, second, scale_ptr, eps, H, 0, dtype)
    key_1, key_2 = _rotated(first, second, cos, sin, dtype)
    value = tl.load(new_ptr + K * H + column)
    tl.store(key_ptr + half, key_1)
    tl.store(key_ptr + H // 2 + half, key_2)
    tl.store(value_ptr + column, value)
    products = query_1.to(tl.float32) * key_1.to(tl.float32)[None, :]
    products += query_2.to(tl.float32) * key_2.to(tl.float32)[None, :]
    return tl.sum(products, axis=1), value


@triton.jit
def _products(query_1, query_2, keys, at, inside, H: tl.constexpr, factor: tl.constexpr):
    """The products of the queries with the keys at these positions."""
    half = tl.arange(0, H // 2)
    key_1 = tl.load(keys + half[:, None] + at[None, :], mask=inside[None, :], other=0.0)
    key_2 = tl.load(keys + H // 2 + half[:, None] + at[None, :], mask=inside[None, :], other=0.0)
    product = tl.dot(query_1.to(factor), key_1.to(factor), input_precision="ieee")
    return product + tl.dot(query_2.to(factor), key_2.to(factor), input_precision="ieee")


@triton.jit
def _scaled(score, scale, cap, HAS_CAP: tl.constexpr):
    score *= scale
    if HAS_CAP:
        score = capped(score, cap)
    return score


@triton.jit
def _with_block(
    peak,
    total,
    out,
    score,
    values,
    at,
    inside,
    H: tl.constexpr,
    dtype: tl.constexpr,
    factor: tl.constexpr,
):
    """The running maximum, the sum of weights relative to it and the weighted sum of values, after
    the slots at these positions.
    """
    column = tl.arange(0, H)
    higher = tl.maximum(peak, tl.max(score, axis=1))
    # a part without a visible slot has weight zero
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.exp(score - base[:, None])
    shrink = tl.exp(peak - base)
    value = tl.load(values + at[:, None] + column[None, :], mask=inside[:, None], other=0.0)
    weighted = tl.dot(weight.to(dtype).to(factor), value.to(factor), input_precision="ieee")
    out = out * shrink[:, None] + weighted
    return higher, total * shrink + tl.sum(weight, axis=1), out


@triton.jit
def _merge(
    part_ptr,
    peak_ptr,
    total_ptr,
    out_ptr,
    G: tl.constexpr,
    H: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One query head: the parts' outputs, weighted by their sums of exponentials."""
    head, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, column = tl.arange(0, BLOCK), tl.arange(0, H)
    at = (head * SPLITS + split) * G + group
    inside = split < SPLITS
    peak = tl.load(peak_ptr + at, mask=inside, other=float("-inf"))
    weight = tl.exp(peak - tl.max(peak, axis=0))
    total = tl.sum(weight * tl.load(total_ptr + at, mask=inside, other=0.0), axis=0)
    part_at = at[:, None] * H + column[None, :]
    part = tl.load(part_ptr + part_at, mask=inside[:, None], other=0.0)
    out = tl.sum(part * weight[:, None], axis=0) / total
    at_out = (head * G + group) * H + column
    tl.store(out_ptr + at_out, out.to(out_ptr.dtype.element_ty))
