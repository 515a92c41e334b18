"""Rotation of a prefill's queries and keys, with the cache write of keys and values.

B rows · L new slots · X queries, keys and values of all heads · K key/value heads · H head size ·
N query heads
"""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pgcli.model.cuda.kernels.norms import normed_halves


def rotate(
    qkv_BLX: Tensor,
    cos_BL1H: Tensor,
    signed_sin_BL1H: Tensor,
    key_BKLH: Tensor,
    value_BKLH: Tensor,
    query_scale_H: Tensor | None,
    key_scale_H: Tensor | None,
    eps: float,
) -> Tensor:
    qkv_BLX = qkv_BLX.contiguous()
    rows, length, width = qkv_BLX.shape
    kv_heads, size = key_BKLH.shape[1], key_BKLH.shape[3]
    heads = width // size - 2 * kv_heads
    query_BLNH = qkv_BLX.new_empty(rows, length, heads, size)
    has_norm = query_scale_H is not None
    _rotate[(rows * length,)](
        *(qkv_BLX, cos_BL1H.contiguous(), signed_sin_BL1H.contiguous(), query_BLNH),
        *(key_BKLH, value_BKLH),
        *((query_scale_H, key_scale_H) if has_norm else (cos_BL1H, cos_BL1H)),
        *(length, key_BKLH.stride(0), key_BKLH.stride(1), eps),
        *(heads, kv_heads, size),
        *(triton.next_power_of_2(heads + kv_heads), triton.next_power_of_2(kv_heads)),
        has_norm,
    )
    return query_BLNH


@triton.jit
def _rotate(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    query_scale_ptr,
    key_scale_ptr,
    length,
    row_stride,
    head_stride,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """One slot of a row; with HAS_NORM, queries and keys are normalized first."""
    place = tl.program_id(0).to(tl.int64)
    at_slot = place // length * row_stride + place % length * H
    qkv = qkv_ptr + place * (N + 2 * K) * H
    half, head = tl.arange(0, H // 2)[None, :], tl.arange(0, BLOCK)[:, None]
    is_query, is_key = head < N, (head >= N) & (head < N + K)
    first = tl.load(qkv + head * H + half, mask=head < N + K, other=0.0).to(tl.float32)
    second = tl.load(qkv + head * H + H // 2 + half, mask=head < N + K, other=0.0).to(tl.float32)
    dtype = query_ptr.dtype.element_ty
    if HAS_NORM:
        query_1, query_2 = normed_halves(first, second, query_scale_ptr, eps, H, 1, dtype)
        key_1, key_2 = normed_halves(first, second, key_scale_ptr, eps, H, 1, dtype)
        first, second = tl.where(is_query, query_1, key_1), tl.where(is_query, query_2, key_2)
    cos = tl.load(cos_ptr + place * H + half).to(tl.float32)
    sin = tl.load(sin_ptr + place * H + H // 2 + half).to(tl.float32)
    first, second = first * cos - second * sin, second * cos + first * sin
    query = query_ptr + (place * N + head) * H + half
    tl.store(query, first.to(dtype), mask=is_query)
    tl.store(query + H // 2, second.to(dtype), mask=is_query)
    key = key_ptr + at_slot + (head - N) * head_stride + half
    tl.store(key, first.to(dtype), mask=is_key)
    tl.store(key + H // 2, second.to(dtype), mask=is_key)
    value_head, column = tl.arange(0, BLOCK_K)[:, None], tl.arange(0, H)[None, :]
    inside = value_head < K
    value = tl.load(qkv + (N + K + value_head) * H + column, mask=inside, other=0.0)
    tl.store(value_ptr + at_slot + value_head * head_stride + column, value, mask=inside)
