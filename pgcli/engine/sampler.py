"""Select tokens from logits, greedily or by sampling with temperature, top-k and top-p.

B rows · V vocabulary · A tokens that a grammar allows in an answer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

COLUMNS = 2**15  # of 257k, converted to float32 at a time
EPSILON = 1e-6  # 0.5 + 0.2 is below 0.7 in float32 and must not be


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are selected: greedily if the temperature is 0, else by sampling.

    `top_k` keeps that many tokens (0: all); `top_p` keeps a token if the mass before it is below p.
    Random numbers depend on the seed and a sequence's key, not on the batch. `max_new_tokens` None
    is the task's default; with `ignore_eos` answers have exactly that many tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    max_new_tokens: int | None = None
    ignore_eos: bool = False


GREEDY = SamplingParams()


class OutputVocabulary(NamedTuple):
    """The tokens that a model generates: ids below `size`, but not `image_token`.

    `stop_tokens` end an answer.
    """

    size: int
    image_token: int
    stop_tokens: tuple[int, ...]


class GrammarMask(NamedTuple):
    """The ids of a grammar's tokens (A,), and which of them are allowed in each row (B, A)."""

    token_A: Tensor
    allowed_BA: Tensor


def select_tokens(
    logits_BV: Tensor,
    sampling: SamplingParams,
    vocabulary: OutputVocabulary,
    draw_B: Tensor | None = None,
    grammar_mask: GrammarMask | None = None,
) -> tuple[Tensor, Tensor]:
    """Each row's next token and its log-probability under the model's own distribution.

    `draw_B` holds each row's random number from [0, 1), which greedy selection does not need.
    """
    logits_BV = mask_invalid(logits_BV, vocabulary)
    if grammar_mask is None:
        token_B = _select(logits_BV, draw_B, sampling)
    else:
        token_A, allowed_BA = grammar_mask
        logits_BA = logits_BV[:, token_A].float().masked_fill_(~allowed_BA, -torch.inf)
        token_B = token_A[_select(logits_BA, draw_B, sampling)]
    return token_B, log_probability(logits_BV, token_B)


def _select(logits_BV: Tensor, draw_B: Tensor | None, sampling: SamplingParams) -> Tensor:
    if draw_B is None or sampling.temperature <= 0:
        return logits_BV.argmax(-1)
    return sample(logits_BV.float(), draw_B, sampling)


def sample(logits_BV: Tensor, draw_B: Tensor, sampling: SamplingParams) -> Tensor:
    """The tokens where the cumulative distribution exceeds each row's number from [0, 1)."""
    # the maximum is subtracted first, so that a small temperature does not overflow
    scaled_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / sampling.temperature
    probability_BV, token_BV = scaled_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        probability_BV[:, sampling.top_k :].zero_()
    if sampling.top_p < 1:
        before_BV = probability_BV.cumsum(-1) - probability_BV
        enough_B1 = sampling.top_p * probability_BV.sum(-1, keepdim=True)  # after top-k
        probability_BV[:, 1:].masked_fill_(before_BV[:, 1:] >= enough_B1 - EPSILON, 0)
    mass_BV = probability_BV.cumsum(-1)
    passed_BV = mass_BV <= draw_B[:, None] * mass_BV[:, -1:]
    last_kept_B1 = (probability_BV > 0).sum(-1, keepdim=True) - 1
    rank_B1 = torch.minimum(passed_BV.sum(-1, keepdim=True), last_kept_B1)
    rank_B1 = rank_B1.clamp(min=0)  # NaN logits keep no token; `Sequence.append` reports them
    chosen_B1: Tensor = token_BV.gather(1, rank_B1)
    return chosen_B1[:, 0]


def mask_invalid(logits_BV: Tensor, vocabulary: OutputVocabulary) -> Tensor:
    """The logits of the output vocabulary; the image token's are set to -inf in place."""
    logits_BV = logits_BV[:, : vocabulary.size]
    if vocabulary.image_token < vocabulary.size:
        logits_BV[:, vocabulary.image_token].fill_(-torch.inf)
    return logits_BV


def log_probability(logits_BV: Tensor, token_B: Tensor) -> Tensor:
    """The log-probability (B,) of each row's token, in float32."""
    return logits_BV.gather(1, token_B[:, None])[:, 0].float() - logsumexp(logits_BV)


def logsumexp(logits_BV: Tensor) -> Tensor:
    """The logarithm of each row's sum of exponentials, in float32.

    Columns are converted in chunks, as all of them in float32 take twice the memory of bfloat16.
    """
    parts = [part.float().logsumexp(-1) for part in torch.split(logits_BV, COLUMNS, dim=1)]
    return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)
