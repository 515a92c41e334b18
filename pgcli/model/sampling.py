"""Sampling from logits with temperature, top-k and top-p.

B rows · V vocabulary · K tokens that may be drawn
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6  # rounding may leave a sum that equals top_p slightly below it
ARGMAX = -1.0  # in place of a random number: the most likely token is taken
#: The tokens that may be drawn unless top-k says how many. Of 257,000 the others have almost no
#: mass together, and to sort all of them takes longer than the model's own step.
MOST_DRAWN = 1024
#: Beyond these, logits divided by the temperature are not float32 numbers; the distribution stays
#: the same, as one token has all of its mass, or every token an equal part.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30


def sample(
    logits_BV: Tensor, draw_B: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """The tokens (B,) where the cumulative distribution exceeds each row's number from [0, 1).

    Tokens are in the order of their probabilities, those with equal ones by their ids. `top_k`
    keeps that many (0: MOST_DRAWN), `top_p` those before which less than that probability lies.
    """
    token_BK = first_tokens(logits_BV, min(top_k or MOST_DRAWN, logits_BV.shape[1]))
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


def first_tokens(logits_BV: Tensor, count: int) -> Tensor:
    """The `count` tokens (B, K) with the largest logits, in descending order, equal ones by id.

    A logit's bits, as an integer of the same order, and its token are one key, as `topk` has no
    order among equal values.
    """
    last = logits_BV.shape[1] - 1
    order_BV = (logits_BV.float() + 0.0).view(torch.int32)  # -0 is 0
    order_BV ^= (order_BV >> 31) & 0x7FFFFFFF
    key_BV = order_BV.long()
    key_BV <<= 32
    key_BV += last - torch.arange(last + 1, device=logits_BV.device)
    return last - (key_BV.topk(count).values & 0xFFFFFFFF)
