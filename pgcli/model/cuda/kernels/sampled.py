"""Samples tokens with temperature, top-k and top-p, without sorting the logits.

Tokens are ordered by descending logit, ties by id. Top-k and top-p keep a prefix of that order,
which ends at a threshold logit, after some of the tokens tied with it. Logits are mapped to
integers of the same order (`_order`), among which the threshold is found by bisection: each step
sums the mass at or above the middle, in one pass over the row.

B rows · V vocabulary
"""

# mypy: ignore-errors
# the functions are Triton's language, not Python's

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pgcli.model.cuda.kernels.greedy import COLUMNS_AT_ONCE, columns, likeliest, store_choice
from pgcli.model.sampling import ARGMAX, EPSILON, bounded

NO_DRAW, ROUNDING = tl.constexpr(ARGMAX), tl.constexpr(EPSILON)
LOWEST = tl.constexpr(-(2**31))


def select_sampled(
    logits_BV: Tensor,
    draw_B: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    size: int,
    excluded: int,
    first_location: int,
    locations: int,
    near: int,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits_BV)
    token_B = torch.empty(rows, dtype=torch.long, device=logits_BV.device)
    logprob_B, near_logprob_B = torch.empty(2, rows, dtype=torch.float32, device=logits_BV.device)
    _select_sampled[(rows,)](
        *(logits_BV, draw_B, token_B, logprob_B, near_logprob_B, logits_BV.stride(0)),
        *(size, excluded, first_location, first_location + locations, near),
        *(bounded(temperature), top_k, top_p),
        *(COLUMNS_AT_ONCE, triton.next_power_of_2(2 * near + 1), top_k > 0, top_p < 1),
        num_warps=8,
    )
    return token_B, logprob_B, near_logprob_B


@triton.jit
def _select_sampled(
    logits_ptr,
    draw_ptr,
    token_ptr,
    logprob_ptr,
    near_ptr,
    stride,
    size,
    excluded,
    start_location,
    stop_location,
    near,
    temperature,
    top_k,
    top_p,
    BLOCK: tl.constexpr,
    BLOCK_NEAR: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
):
    """One row: its kept tokens' boundary, that of the draw within them, and the token there."""
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * stride
    token, peak, total = likeliest(logits, size, excluded, BLOCK)
    number = tl.load(draw_ptr + row)
    if number != NO_DRAW:
        high = _order(peak, logits.dtype.element_ty)
        low, kept = tl.full([], LOWEST, tl.int32), size
        whole = _mass(logits, size, excluded, peak, temperature, low, False, BLOCK)
        mass = whole
        if HAS_TOP_K:
            low, kept, mass = _top_k(
                logits, size, excluded, peak, temperature, top_k, low, high, BLOCK
            )
        if HAS_TOP_P:
            enough = top_p * mass - ROUNDING * whole
            low, kept, mass = _top_p(
                logits, size, excluded, peak, temperature, enough, low, high, kept, BLOCK
            )
        at = _boundary(
            *(logits, size, excluded, peak, temperature, number * mass, low, high),
            *(False, True, BLOCK),
        )
        above, ties, tied = _ties(logits, size, excluded, peak, temperature, at, BLOCK)
        most = tl.where(at == low, tl.minimum(kept, ties), ties)
        place = tl.floor((number * mass - above) / tied).to(tl.int32)
        place = tl.minimum(tl.maximum(place, 0), most - 1)
        token = _nth(logits, size, excluded, at, place, token, BLOCK)
    store_choice(
        *(logits, row, token, peak, total, token_ptr, logprob_ptr, near_ptr, excluded),
        *(start_location, stop_location, near, BLOCK_NEAR),
    )


@triton.jit
def _top_k(logits, size, excluded, peak, temperature, top_k, low, high, BLOCK: tl.constexpr):
    """The lowest order of the `top_k` first tokens, how many of that order, and the mass of all."""
    low = _boundary(
        *(logits, size, excluded, peak, temperature, top_k * 1.0, low, high),
        *(True, False, BLOCK),
    )
    above, ties, tied = _ties(logits, size, excluded, peak, temperature, low, BLOCK)
    before = _mass(logits, size, excluded, peak, temperature, low + 1, True, BLOCK)
    kept = tl.minimum(top_k - before.to(tl.int32), ties)
    return low, kept, above + kept * tied


@triton.jit
def _top_p(logits, size, excluded, peak, temperature, enough, low, high, kept, BLOCK: tl.constexpr):
    """As `_top_k`, of the first tokens with `enough` mass; at most `kept` of the order `low`."""
    last = _boundary(
        *(logits, size, excluded, peak, temperature, enough, low, high),
        *(False, False, BLOCK),
    )
    above, ties, tied = _ties(logits, size, excluded, peak, temperature, last, BLOCK)
    most = tl.where(last == low, tl.minimum(kept, ties), ties)
    kept = tl.ceil((enough - above) / tied).to(tl.int32)
    kept = tl.minimum(tl.maximum(kept, 1), most)
    return last, kept, above + kept * tied


@triton.jit
def _order(x, dtype: tl.constexpr):
    """Integers in the order of these values; bfloat16 has 16 bits of them."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0 is 0
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if dtype == tl.bfloat16:
        order = order >> 16
    return order


@triton.jit
def _weight(x, peak, temperature, IS_COUNT: tl.constexpr):
    """The weight of each value relative to the largest, or 1 for each that is a token."""
    if IS_COUNT:
        return tl.where(x > float("-inf"), 1.0, 0.0)
    return tl.exp((x - peak) / temperature)


@triton.jit
def _mass(
    logits, size, excluded, peak, temperature, least, IS_COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """The weights together of all tokens whose order is at least `least`."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        x = columns(logits, start, size, excluded, BLOCK)
        weight = _weight(x, peak, temperature, IS_COUNT)
        total += tl.where(_order(x, logits.dtype.element_ty) >= least, weight, 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _boundary(
    logits,
    size,
    excluded,
    peak,
    temperature,
    target,
    low,
    high,
    IS_COUNT: tl.constexpr,
    IS_BEYOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The highest order, from `low` to `high`, whose mass reaches the target, or goes beyond it."""
    while low < high:
        # without overflow; rounded up
        middle = (low | high) - ((low ^ high) >> 1)
        mass = _mass(logits, size, excluded, peak, temperature, middle, IS_COUNT, BLOCK)
        suffices = mass > target if IS_BEYOND else mass >= target
        low = tl.where(suffices, middle, low)
        high = tl.where(suffices, high, middle - 1)
    return low


@triton.jit
def _ties(logits, size, excluded, peak, temperature, order, BLOCK: tl.constexpr):
    """The mass before the tokens of an order, their number, and the weight of each."""
    above = tl.zeros([BLOCK], tl.float32)
    ties, tied = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        x = columns(logits, start, size, excluded, BLOCK)
        weight = _weight(x, peak, temperature, False)
        place = _order(x, logits.dtype.element_ty)
        above += tl.where(place > order, weight, 0.0)
        ties += (place == order).to(tl.int32)
        tied += tl.where(place == order, weight, 0.0)
    count = tl.sum(ties, axis=0)
    return tl.sum(above, axis=0), count, tl.sum(tied, axis=0) / tl.maximum(count, 1)


@triton.jit
def _nth(logits, size, excluded, order, number, token, BLOCK: tl.constexpr):
    """The token that `number` others of the same order precede."""
    before = 0
    for start in range(0, size, BLOCK):
        x = columns(logits, start, size, excluded, BLOCK)
        is_tie = (_order(x, logits.dtype.element_ty) == order).to(tl.int32)
        is_it = (is_tie == 1) & (before + tl.cumsum(is_tie, axis=0) == number + 1)
        found = tl.max(tl.where(is_it, start + tl.arange(0, BLOCK), -1), axis=0)
        token = tl.where(found >= 0, found, token)
        before += tl.sum(is_tie, axis=0)
    return token
