"""The greedy choice of tokens, with log-probabilities, in one pass over the logits.

B rows · V vocabulary
"""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS_AT_ONCE = 4096


def select_greedy(
    logits_BV: Tensor, size: int, excluded: int, first_location: int, locations: int, near: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits_BV)
    token_B = torch.empty(rows, dtype=torch.long, device=logits_BV.device)
    logprob_B, near_logprob_B = torch.empty(2, rows, dtype=torch.float32, device=logits_BV.device)
    _select_greedy[(rows,)](
        *(logits_BV, token_B, logprob_B, near_logprob_B, logits_BV.stride(0), size, excluded),
        *(first_location, first_location + locations, near, COLUMNS_AT_ONCE),
        triton.next_power_of_2(2 * near + 1),
        num_warps=8,
    )
    return token_B, logprob_B, near_logprob_B


@triton.jit
def _select_greedy(
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
    token, peak, total = likeliest(logits, size, excluded, BLOCK)
    store_choice(
        *(logits, row, token, peak, total, token_ptr, logprob_ptr, near_ptr, excluded),
        *(start_location, stop_location, near, BLOCK_NEAR),
    )


@triton.jit
def store_choice(
    logits,
    row,
    token,
    peak,
    total,
    token_ptr,
    logprob_ptr,
    near_ptr,
    excluded,
    start_location,
    stop_location,
    near,
    BLOCK_NEAR: tl.constexpr,
):
    """Store a row's token with its log-probability, and that of all locations near it."""
    tl.store(token_ptr + row, token)
    chosen = tl.load(logits + token).to(tl.float32)
    tl.store(logprob_ptr + row, chosen - peak - total)
    place = token - near + tl.arange(0, BLOCK_NEAR)
    inside = (place >= start_location) & (place < stop_location) & (place <= token + near)
    inside &= place != excluded
    x = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
    tl.store(near_ptr + row, tl.log(tl.sum(tl.exp(x - peak), axis=0)) - total)


@triton.jit
def likeliest(logits, size, excluded, BLOCK: tl.constexpr):
    """The first largest logit's token; it, and the logarithm of the sum of all relative to it."""
    peak, total, token = float("-inf"), 0.0, 0
    for start in range(0, size, BLOCK):
        x = columns(logits, start, size, excluded, BLOCK)
        largest = tl.max(x, axis=0)
        token = tl.where(largest > peak, start + tl.argmax(x, axis=0), token)
        higher = tl.maximum(peak, largest)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(x - base), axis=0)
        peak = higher
    return token, peak, tl.log(total)  # NaN if any logit is


@triton.jit
def columns(logits, start, size, excluded, BLOCK: tl.constexpr):
    """A block of a row's logits, -inf for columns that are not tokens."""
    column = start + tl.arange(0, BLOCK)
    inside = (column < size) & (column != excluded)
    return tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
