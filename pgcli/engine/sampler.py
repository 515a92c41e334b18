"""How a token is drawn from the scores of all: greedily, or at random within limits.

B rows · V vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-6  # 0.5 + 0.2 is below 0.7 in float32 and must not be


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn: greedily, unless the temperature is above 0.

    `top_k` keeps that many tokens (0: all); `top_p` keeps a token where the mass before it is
    below p. The seed and the row's own key decide its draws, so a batch has no say in them.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


GREEDY = Sampling()


def sample(logits_BV: Tensor, draw_B: Tensor, sampling: Sampling) -> Tensor:
    """The tokens at which a cumulative distribution passes each row's draw from [0, 1)."""
    # from the highest down, so that no temperature, however small, divides into infinity
    scaled_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / sampling.temperature
    probability_BV, token_BV = scaled_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        probability_BV[:, sampling.top_k :] = 0
    if sampling.top_p < 1:
        before_BV = probability_BV.cumsum(-1) - probability_BV
        enough_B1 = sampling.top_p * probability_BV.sum(-1, keepdim=True)  # of what top-k left
        probability_BV[:, 1:][before_BV[:, 1:] >= enough_B1 - EPSILON] = 0
    mass_BV = probability_BV.cumsum(-1)
    passed_BV = mass_BV <= draw_B[:, None] * mass_BV[:, -1:]
    last_kept_B1 = (probability_BV > 0).sum(-1, keepdim=True) - 1
    rank_B1 = torch.minimum(passed_BV.sum(-1, keepdim=True), last_kept_B1)
    rank_B1 = rank_B1.clamp(min=0)  # scores that are no numbers keep nothing; `_append` says so
    chosen_B1: Tensor = token_BV.gather(1, rank_B1)
    return chosen_B1[:, 0]
