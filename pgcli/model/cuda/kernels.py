"""Triton kernels of the operators in `operators.py`, for bfloat16 and float32.

B rows · D width · M inner width · X queries, keys and values of all heads · K key/value heads ·
G query heads per key/value head · H head size · S slots · V vocabulary
"""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 256  # attention over few rows is split until about as many programs run
MOST_SPLITS = 8
SLOTS_AT_ONCE = {2: 64, 4: 16}  # by the bytes of a value; more do not fit into shared memory
COLUMNS_AT_ONCE = 4096
#: The interpreter cannot multiply matrices of bfloat16.
IS_INTERPRETED = triton.knobs.runtime.interpret
ELEMENTS_AT_ONCE = 1024


def rms_norm(x: Tensor, scale_D: Tensor, eps: float) -> Tensor:
    normed = torch.empty_like(x)
    width = x.shape[-1]
    _norm[(x.numel() // width,)](
        x, x, scale_D, scale_D, x, normed, width, eps, _power(width), False, False, num_warps=8
    )
    return normed


def residual_norm(
    x: Tensor, delta: Tensor, post_scale_D: Tensor | None, scale_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x, delta = x.contiguous(), delta.contiguous()
    total, normed = torch.empty_like(x), torch.empty_like(x)
    post, has_post, width = post_scale_D, post_scale_D is not None, x.shape[-1]
    _norm[(x.numel() // width,)](
        *(x, delta, post if has_post else scale_D, scale_D, total, normed, width, eps),
        *(_power(width), True, has_post),
        num_warps=8,
    )
    return total, normed


@triton.jit
def _norm(
    x_ptr,
    delta_ptr,
    post_ptr,
    scale_ptr,
    total_ptr,
    normed_ptr,
    width,
    eps,
    BLOCK: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_POST: tl.constexpr,
):
    """One row: x, plus delta (normalized first with HAS_POST), and the norm of the sum."""
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
    normed = wide * root * scale
    tl.store(normed_ptr + row + column, normed.to(x.dtype), mask=inside)


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
    inside = column < inner
    gate = tl.load(gate_up_ptr + row * 2 * inner + column, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + row * 2 * inner + inner + column, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    # 0.5 * x * (1 + tanh(u)) is x * sigmoid(2 * u)
    twice = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    # rounded before it is multiplied, as by separate operations
    gelu = (x * tl.sigmoid(twice)).to(gate.dtype).to(tl.float32)
    out = (gelu * up.to(tl.float32)).to(gate.dtype)
    tl.store(out_ptr + row * inner + column, out, mask=inside)


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
    tl.store(out_ptr + index, _capped(x, cap), mask=index < count)


@triton.jit
def _capped(x, cap):
    """`cap * tanh(x / cap)`."""
    return cap * (2 * tl.sigmoid(2 * x / cap) - 1)


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
    _attend[(rows, kv_heads, splits)](
        *(qkv_BX, position_B, frequency, key_BKSH, value_BKSH, mask_BS, slot_B),
        *(part, peak, total, qkv_BX.stride(0), key_BKSH.stride(0), key_BKSH.stride(1)),
        *(mask_BS.stride(0), scale, cap, kv_heads, groups, size, max(16, _power(groups))),
        *(SLOTS_AT_ONCE[qkv_BX.itemsize], splits, cap > 0, IS_INTERPRETED),
        num_warps=4,
    )
    if splits > 1:
        _merge[(rows * kv_heads, groups)](
            part, peak, total, out_BX, groups, size, splits, _power(splits)
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
    out_ptr,
    peak_ptr,
    total_ptr,
    qkv_stride,
    row_stride,
    head_stride,
    mask_stride,
    scale,
    cap,
    K: tl.constexpr,
    G: tl.constexpr,
    H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    DOT_FLOAT32: tl.constexpr,
):
    """One row, key/value head and part of the slots: rotate, store the new slot, and attend.

    The new slot's key and value come from `qkv`; the first part takes and stores them, the others
    read only slots before it. Slots behind it are not read, however many are allocated.
    """
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slot_ptr + row)
    half, whole = tl.arange(0, H // 2), tl.arange(0, H)
    group = tl.arange(0, BLOCK_G)
    in_group = (group < G)[:, None]
    dtype = key_ptr.dtype.element_ty
    factor = tl.float32 if DOT_FLOAT32 else dtype

    angle = tl.load(position_ptr + row).to(tl.float32) * tl.load(frequency_ptr + half)
    cos = tl.cos(angle).to(dtype).to(tl.float32)
    sin = tl.sin(angle).to(dtype).to(tl.float32)
    query_ptr = qkv_ptr + row * qkv_stride + (head * G + group)[:, None] * H + half[None, :]
    first = tl.load(query_ptr, mask=in_group, other=0.0).to(tl.float32)
    second = tl.load(query_ptr + H // 2, mask=in_group, other=0.0).to(tl.float32)
    query_1 = (first * cos - second * sin).to(dtype)
    query_2 = (second * cos + first * sin).to(dtype)

    keys = key_ptr + row * row_stride + head * head_stride
    values = value_ptr + row * row_stride + head * head_stride
    peak = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    out = tl.zeros([BLOCK_G, H], tl.float32)
    if part == 0:
        new_ptr = qkv_ptr + row * qkv_stride + (K * G + head) * H
        new_first = tl.load(new_ptr + half).to(tl.float32)
        new_second = tl.load(new_ptr + H // 2 + half).to(tl.float32)
        new_key_1 = (new_first * cos - new_second * sin).to(dtype)
        new_key_2 = (new_second * cos + new_first * sin).to(dtype)
        new_value = tl.load(new_ptr + K * H + whole)
        tl.store(keys + slot * H + half, new_key_1)
        tl.store(keys + slot * H + H // 2 + half, new_key_2)
        tl.store(values + slot * H + whole, new_value)
        products = query_1.to(tl.float32) * new_key_1.to(tl.float32)[None, :]
        products += query_2.to(tl.float32) * new_key_2.to(tl.float32)[None, :]
        peak = tl.sum(products, axis=1) * scale
        if HAS_CAP:
            peak = _capped(peak, cap)
        total += 1
        out += new_value.to(tl.float32)[None, :]

    length = tl.cdiv(tl.cdiv(slot, SPLITS), BLOCK_S) * BLOCK_S
    for start in range(part * length, tl.minimum(slot, (part + 1) * length), BLOCK_S):
        slots = start + tl.arange(0, BLOCK_S)
        before = slots < slot
        visible = tl.load(mask_ptr + row * mask_stride + slots, mask=before, other=0) != 0
        at = slots.to(tl.int64) * H
        key_1 = tl.load(keys + half[:, None] + at[None, :], mask=before[None, :], other=0.0)
        key_2 = tl.load(
            keys + H // 2 + half[:, None] + at[None, :], mask=before[None, :], other=0.0
        )
        score = tl.dot(query_1.to(factor), key_1.to(factor), input_precision="ieee")
        score += tl.dot(query_2.to(factor), key_2.to(factor), input_precision="ieee")
        score *= scale
        if HAS_CAP:
            score = _capped(score, cap)
        score = tl.where(visible[None, :], score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1))
        # a part may see no slot at all: its weight is zero
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(peak - base)
        value = tl.load(values + at[:, None] + whole[None, :], mask=before[:, None], other=0.0)
        weighted = tl.dot(weight.to(dtype).to(factor), value.to(factor), input_precision="ieee")
        out = out * shrink[:, None] + weighted
        total = total * shrink + tl.sum(weight, axis=1)
        peak = higher

    if SPLITS == 1:
        at = row * (K * G * H) + (head * G + group)[:, None] * H + whole[None, :]
        tl.store(out_ptr + at, (out / total[:, None]).to(dtype), mask=in_group)
    else:
        at = ((row * K + head) * SPLITS + part) * G + group
        tl.store(out_ptr + at[:, None] * H + whole[None, :], out, mask=in_group)
        tl.store(peak_ptr + at, peak, mask=group < G)
        tl.store(total_ptr + at, total, mask=group < G)


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
    split, whole = tl.arange(0, BLOCK), tl.arange(0, H)
    at = (head * SPLITS + split) * G + group
    inside = split < SPLITS
    peak = tl.load(peak_ptr + at, mask=inside, other=float("-inf"))
    weight = tl.exp(peak - tl.max(peak, axis=0))
    total = tl.sum(weight * tl.load(total_ptr + at, mask=inside, other=0.0), axis=0)
    part_at = at[:, None] * H + whole[None, :]
    part = tl.load(part_ptr + part_at, mask=inside[:, None], other=0.0)
    out = tl.sum(part * weight[:, None], axis=0) / total
    at_out = (head * G + group) * H + whole
    tl.store(out_ptr + at_out, out.to(out_ptr.dtype.element_ty))


def choose(
    logits_BV: Tensor, size: int, excluded: int, first_location: int, locations: int, near: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits_BV)
    token_B = torch.empty(rows, dtype=torch.long, device=logits_BV.device)
    logprob_B, near_B = torch.empty(2, rows, dtype=torch.float32, device=logits_BV.device)
    _choose[(rows,)](
        *(logits_BV, token_B, logprob_B, near_B, logits_BV.stride(0), size, excluded),
        *(first_location, first_location + locations, near, COLUMNS_AT_ONCE),
        _power(2 * near + 1),
        num_warps=8,
    )
    return token_B, logprob_B, near_B


@triton.jit
def _choose(
    logits_ptr,
    token_ptr,
    logprob_ptr,
    near_ptr,
    stride,
    size,
    excluded,
    start_location,
    stop_location,
    near,
    BLOCK: tl.constexpr,
    BLOCK_NEAR: tl.constexpr,
):
    """One row in one pass: the first largest logit, and the logarithm of the sum of all."""
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * stride
    peak, total, token = float("-inf"), 0.0, 0
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = (column < size) & (column != excluded)
        x = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
        largest = tl.max(x, axis=0)
        token = tl.where(largest > peak, start + tl.argmax(x, axis=0), token)
        higher = tl.maximum(peak, largest)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(x - base), axis=0)
        peak = higher
    total = tl.log(total)  # relative to the peak; NaN if any logit is
    tl.store(token_ptr + row, token)
    tl.store(logprob_ptr + row, -total)
    place = token - near + tl.arange(0, BLOCK_NEAR)
    inside = (place >= start_location) & (place < stop_location) & (place <= token + near)
    inside &= place != excluded
    x = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
    tl.store(near_ptr + row, tl.log(tl.sum(tl.exp(x - peak), axis=0)) - total)


def _power(value: int) -> int:
    return triton.next_power_of_2(value)
