"""Sampling from logits with temperature, top-k and top-p.

B rows · V vocabulary · K tokens that may be drawn · G groups of N neighbours
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-6  # rounding may leave a sum that equals top_p slightly below it
#: How many tokens are candidates unless top-k says so. The rest of the 257,000 have almost no
#: probability, and sorting all of them takes longer than the model's own step.
MOST_DRAWN = 1024
NEIGHBOURS = 64  # tokens in a group; the groups' maxima are compared first
#: Beyond these, logits divided by the temperature overflow float32; the distribution is the same
#: there, with all probability on one token, or the same on every token.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30


def sample(
    logits_BV: Tensor, draw_B: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """The tokens (B,) where the cumulative distribution exceeds each row's number from [0, 1).

    Tokens are sorted by probability, equal ones by id. `top_k` keeps that many (0: MOST_DRAWN);
    `top_p` keeps each token with less than that probability before it.
    """
    token_BK = top_tokens(logits_BV, min(top_k or MOST_DRAWN, logits_BV.shape[1]))
    logits_BK = logits_BV.gather(1, token_BK).float()
    # the maximum is subtracted first, so that a small temperature does not overflow
    bounded = min(max(temperature, MIN_TEMPERATURE), MAX_TEMPERATURE)
    probability_BK = ((logits_BK - logits_BK[:, :1]) / bounded).softmax(-1)
    if top_p < 1:
        before_BK = probability_BK.cumsum(-1) - probability_BK
        probability_BK[:, 1:].masked_fill_(before_BK[:, 1:] >= top_p - EPSILON, 0)
    mass_BK = probability_BK.cumsum(-1)
    passed_BK = mass_BK <= draw_B[:, None] * mass_BK[:, -1:]
    last_kept_B1 = (probability_BK > 0).sum(-1, keepdim=True) - 1
    rank_B1 = torch.minimum(passed_BK.sum(-1, keepdim=True), last_kept_B1)
    rank_B1 = rank_B1.clamp(min=0)  # NaN logits keep no token; `Sequence.append` reports them
    return token_BK.gather(1, rank_B1)[:, 0]


def top_tokens(logits_BV: Tensor, count: int) -> Tensor:
    """The `count` tokens (B, K) with the largest logits, in descending order, equal ones by id.

    They are in the `count` groups of neighbours with the largest maxima, the first of equal ones,
    because each of these groups has a token that comes before all tokens of the other groups.
    """
    size = logits_BV.shape[1]
    groups = -(-size // NEIGHBOURS)
    if groups <= count:
        return _first(logits_BV, count)
    padded_BV = F.pad(logits_BV, (0, groups * NEIGHBOURS - size), value=-torch.inf)
    grouped_BGN = padded_BV.view(-1, groups, NEIGHBOURS)
    # ascending, so that candidates are in the order of their ids
    group_BK = _first(grouped_BGN.amax(2), count).sort(1).values
    index_BKN = group_BK[:, :, None].expand(-1, -1, NEIGHBOURS)
    place_BK = _first(grouped_BGN.gather(1, index_BKN).flatten(1), count)
    return group_BK.gather(1, place_BK // NEIGHBOURS) * NEIGHBOURS + place_BK % NEIGHBOURS


def _first(x_BV: Tensor, count: int) -> Tensor:
    """The indices (B, K) of the largest values, in descending order, equal ones by index.

    A value's bits, as an integer of the same order, and its index form one key, because `topk`
    does not order equal values.
    """
    last = x_BV.shape[1] - 1
    order_BV = (x_BV.float() + 0.0).view(torch.int32)
    order_BV ^= (order_BV >> 31) & 0x7FFFFFFF
    key_BV = order_BV.long()
    key_BV <<= 32
    key_BV += last - torch.arange(last + 1, device=x_BV.device)
    return last - (key_BV.topk(count).values & 0xFFFFFFFF)
