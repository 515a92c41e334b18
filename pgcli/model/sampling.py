"""Sampling from logits with temperature, top-k and top-p.

B rows · V vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6  # rounding may leave a sum that equals top_p slightly below it
ARGMAX = -1.0  # in place of a random number: the most likely token is taken
#: Beyond these, logits divided by the temperature are not float32 numbers; the distribution stays
#: the same, as one token has all of its mass, or every token an equal part.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30


def bounded(temperature: float) -> float:
    """The temperature in float32's range, with the same distribution."""
    return min(max(temperature, MIN_TEMPERATURE), MAX_TEMPERATURE)


def sample(
    logits_BV: Tensor, draw_B: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """The tokens where the cumulative distribution exceeds each row's number from [0, 1).

    Tokens are in the order of their probabilities, those with equal ones by their ids. `top_k`
    keeps that many (0: all), `top_p` those before which less than that probability lies.
    """
    # the maximum is subtracted first, so that a small temperature does not overflow
    scaled_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / bounded(temperature)
    probability_BV, token_BV = scaled_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
    if top_k:
        probability_BV[:, top_k:].zero_()
    if top_p < 1:
        before_BV = probability_BV.cumsum(-1) - probability_BV
        enough_B1 = top_p * probability_BV.sum(-1, keepdim=True)  # after top-k
        probability_BV[:, 1:].masked_fill_(before_BV[:, 1:] >= enough_B1 - EPSILON, 0)
    mass_BV = probability_BV.cumsum(-1)
    passed_BV = mass_BV <= draw_B[:, None] * mass_BV[:, -1:]
    last_kept_B1 = (probability_BV > 0).sum(-1, keepdim=True) - 1
    rank_B1 = torch.minimum(passed_BV.sum(-1, keepdim=True), last_kept_B1)
    rank_B1 = rank_B1.clamp(min=0)  # NaN logits keep no token; `Sequence.append` reports them
    chosen_B1: Tensor = token_BV.gather(1, rank_B1)
    return chosen_B1[:, 0]
