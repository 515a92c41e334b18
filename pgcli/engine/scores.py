"""Scores over the vocabulary: which of them count, and their sum, without a copy of all.

B rows · V vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 2**15  # of 257k, in float32 at a time


def mask_invalid(logits_BV: Tensor, vocabulary: int, image_token: int) -> Tensor:
    """The scores of the tokens that can be generated; the image's is ruled out in place."""
    logits_BV = logits_BV[:, :vocabulary]
    if image_token < vocabulary:
        logits_BV[:, image_token] = -torch.inf
    return logits_BV


def log_probability(logits_BV: Tensor, token_B: Tensor) -> Tensor:
    """The log-probability (B,) of each row's token, in float32."""
    return logits_BV.gather(1, token_B[:, None])[:, 0].float() - logsumexp(logits_BV)


def logsumexp(logits_BV: Tensor) -> Tensor:
    """The logarithm of each row's sum of exponentials, in float32.

    A part of the columns at a time: all of them in float32 are twice what the head itself wrote.
    """
    parts = [part.float().logsumexp(-1) for part in torch.split(logits_BV, COLUMNS, dim=1)]
    return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)
