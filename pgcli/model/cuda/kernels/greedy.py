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
#: The vocabulary is split into so many parts that all processors of a GPU read it.
PROGRAMS = 512
MAX_PARTS = 64


def select_greedy(
    logits_BV: Tensor, size: int, excluded: int, first_location: int, locations: int, near: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows, device = len(logits_BV), logits_BV.device
    parts = triton.next_power_of_2(max(1, min(PROGRAMS // rows, MAX_PARTS)))
    columns = triton.cdiv(triton.cdiv(size, parts), COLUMNS_AT_ONCE) * COLUMNS_AT_ONCE
    token_BP = torch.empty(rows, parts, dtype=torch.long, device=device)
    peak_BP, total_BP = torch.empty(2, rows, parts, dtype=torch.float32, device=device)
    _select_in_parts[(rows, parts)](
        *(logits_BV, token_BP, peak_BP, total_BP, logits_BV.stride(0), size, excluded, columns),
        COLUMNS_AT_ONCE,
        num_warps=8,
    )
    token_B = torch.empty(rows, dtype=torch.long, device=device)
    logprob_B, near_logprob_B = torch.empty(2, rows, dtype=torch.float32, device=device)
    _select_part[(rows,)](
        *(logits_BV, token_BP, peak_BP, total_BP, token_B, logprob_B, near_logprob_B),
        *(logits_BV.stride(0), excluded, first_location, first_location + locations, near),
        *(parts, triton.next_power_of_2(2 * near + 1)),
        num_warps=1,
    )
    return token_B, logprob_B, near_logprob_B


@triton.jit
def _select_in_parts(
    logits_ptr,
    part_token_ptr,
    peak_ptr,
    total_ptr,
    stride,
    size,
    excluded,
    columns,
    BLOCK: tl.constexpr,
):
    """A part of a row: its first largest logit, and the sum of exponentials relative to it."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits = logits_ptr + row * stride
    peak, total, token = float("-inf"), 0.0, 0
    stop = tl.minimum((part + 1) * columns, size)
    for start in range(part * columns, stop, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = (column < stop) & (column != excluded)
        x = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
        largest = tl.max(x, axis=0)
        token = tl.where(largest > peak, start + tl.argmax(x, axis=0), token)
        higher = tl.maximum(peak, largest)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(x - base), axis=0)
        peak = higher
    place = row * tl.num_programs(1) + part
    tl.store(part_token_ptr + place, token)
    tl.store(peak_ptr + place, peak)
    tl.store(total_ptr + place, total)  # NaN if any logit is


@triton.jit
def _select_part(
    logits_ptr,
    part_token_ptr,
    peak_ptr,
    total_ptr,
    token_ptr,
    logprob_ptr,
    near_ptr,
    stride,
    excluded,
    start_location,
    stop_location,
    near,
    PARTS: tl.constexpr,
    BLOCK_NEAR: tl.constexpr,
):
    """The token of the first part with the largest logit, its log-probability, and the
    log-probability of all locations near it."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    peaks = tl.load(peak_ptr + row * PARTS + part)
    totals = tl.load(total_ptr + row * PARTS + part)
    peak = tl.max(peaks, axis=0)
    total = tl.log(tl.sum(totals * tl.exp(peaks - peak), axis=0))
    token = tl.load(part_token_ptr + row * PARTS + tl.argmax(peaks, axis=0))
    tl.store(token_ptr + row, token)
    logits = logits_ptr + row * stride
    tl.store(logprob_ptr + row, tl.load(logits + token).to(tl.float32) - peak - total)
    place = token - near + tl.arange(0, BLOCK_NEAR)
    inside = (place >= start_location) & (place < stop_location) & (place <= token + near)
    inside &= place != excluded
    x = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
    tl.store(near_ptr + row, tl.log(tl.sum(tl.exp(x - peak), axis=0)) - total)
