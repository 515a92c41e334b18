"""Select tokens from logits, greedily or by sampling with temperature, top-k and top-p.

B rows of this pass · R rows allocated · T new tokens · V vocabulary · A tokens that a grammar
allows in an answer · N locations near a location
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.model.sampling import sample
from pgcli.model.transfer import to_device, to_host

LOGSUMEXP_CHUNK = 2**15  # columns of 257k, converted to float32 at a time
ONE_KERNEL = ("cuda", "meta")  # devices that select greedily in one kernel
NEAR = 16  # of 1,024 locations: a box's confidence sums the probabilities within this distance


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are selected: greedily if the temperature is 0, else by sampling.

    `top_k` keeps that many tokens (0: all); `top_p` keeps a token if likelier ones have less than
    that probability together. Random numbers depend on the seed and a sequence's key, not on the
    batch. `max_new_tokens` None is the task's default; with `ignore_eos` answers have exactly that
    many tokens.
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

    `stop_tokens` end an answer. `locations` are the location tokens, which make up boxes.
    """

    size: int
    image_token: int
    stop_tokens: tuple[int, ...]
    locations: range = range(0)


class NextTokens(NamedTuple):
    """Each row's next token and its log-probability.

    `near_logprob_B` is, for a location, the log-probability of all locations near it, and undefined
    for other tokens. None if the vocabulary has no locations.
    """

    token_B: Tensor
    logprob_B: Tensor
    near_logprob_B: Tensor | None = None

    def copy_to_host(self, rows: int) -> NextTokens:
        """Start to copy the tokens of the first `rows` rows to the CPU, without waiting for it."""
        near_logprob_B = (
            None if self.near_logprob_B is None else to_host(self.near_logprob_B[:rows])
        )
        return NextTokens(
            to_host(self.token_B[:rows]), to_host(self.logprob_B[:rows]), near_logprob_B
        )


class GrammarMask(NamedTuple):
    """The ids of a grammar's tokens (A,), and which of them are allowed in each row (B, A)."""

    token_A: Tensor
    allowed_BA: Tensor


class Sampler:
    """Selects each row's next token; the rows' random numbers stay on the device."""

    def __init__(
        self,
        sampling: SamplingParams,
        vocabulary: OutputVocabulary,
        *,
        max_rows: int,
        device: torch.device,
    ):
        self._sampling, self._vocabulary, self._max_rows = sampling, vocabulary, max_rows
        self._draw_RT = torch.zeros(max_rows, 0, device=device)
        self._draw_index_R = torch.zeros(max_rows, dtype=torch.long, device=device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that a selection reads and writes; rows are their first dimension."""
        return self._draw_RT, self._draw_index_R

    def insert(self, rows: slice, draws: list[list[float]]) -> None:
        """Copy new rows' random numbers, one for each of their tokens, to the device."""
        longest = max(map(len, draws))
        if longest > self._draw_RT.shape[1]:
            wider_RT = self._draw_RT.new_zeros(self._max_rows, longest)
            wider_RT[:, : self._draw_RT.shape[1]] = self._draw_RT
            self._draw_RT = wider_RT
        padded = [[*row, *[0.0] * (longest - len(row))] for row in draws]
        self._draw_RT[rows, :longest] = to_device(torch.tensor(padded), self._draw_RT.device)
        self._draw_index_R[rows].zero_()

    def select(
        self, logits_BV: Tensor, rows: slice, grammar_mask: GrammarMask | None
    ) -> NextTokens:
        """The next token of these rows, as `select_tokens`."""
        draw_B = None
        if self._sampling.temperature > 0:
            index_B = self._draw_index_R[rows]
            draw_B = self._draw_RT[rows].gather(1, index_B[:, None])[:, 0]
            index_B.add_(1).clamp_(max=self._draw_RT.shape[1] - 1)
        return select_tokens(logits_BV, self._sampling, self._vocabulary, draw_B, grammar_mask)


def select_tokens(
    logits_BV: Tensor,
    sampling: SamplingParams,
    vocabulary: OutputVocabulary,
    draw_B: Tensor | None = None,
    grammar_mask: GrammarMask | None = None,
) -> NextTokens:
    """Each row's next token, with log-probabilities under the model's own distribution.

    `draw_B` holds each row's random number from [0, 1); greedy selection needs none.
    """
    is_greedy = draw_B is None or sampling.temperature <= 0
    if is_greedy and grammar_mask is None and logits_BV.device.type in ONE_KERNEL:
        return _greedy_in_one_kernel(logits_BV, vocabulary)
    logits_BV = mask_invalid(logits_BV, vocabulary)
    if grammar_mask is None:
        token_B = _select(logits_BV, draw_B, sampling)
    else:
        token_A, allowed_BA = grammar_mask
        logits_BA = logits_BV[:, token_A].float().masked_fill_(~allowed_BA, -torch.inf)
        token_B = token_A[_select(logits_BA, draw_B, sampling)]
    total_B = logsumexp(logits_BV)
    logprob_B = logits_BV.gather(1, token_B[:, None])[:, 0].float() - total_B
    if not vocabulary.locations:
        return NextTokens(token_B, logprob_B)
    return NextTokens(
        token_B, logprob_B, log_mass_near(logits_BV, token_B, vocabulary.locations) - total_B
    )


def _greedy_in_one_kernel(logits_BV: Tensor, vocabulary: OutputVocabulary) -> NextTokens:
    from pgcli.model.cuda import operators  # noqa: F401, registers torch.ops.pgcli

    places = vocabulary.locations
    token_B, logprob_B, near_logprob_B = torch.ops.pgcli.select_greedy(
        logits_BV, vocabulary.size, vocabulary.image_token, places.start, len(places), NEAR
    )
    return NextTokens(token_B, logprob_B, near_logprob_B if places else None)


def log_mass_near(logits_BV: Tensor, token_B: Tensor, locations: range) -> Tensor:
    """The logsumexp (B,) of the locations at most NEAR places from each row's token."""
    offset_N = torch.arange(-NEAR, NEAR + 1, device=token_B.device)
    place_BN = token_B[:, None] + offset_N
    within_BN = place_BN.clamp(locations.start, locations.stop - 1)
    logit_BN = logits_BV.gather(1, within_BN).float()
    return logit_BN.masked_fill_(place_BN != within_BN, -torch.inf).logsumexp(-1)


def _select(logits_BV: Tensor, draw_B: Tensor | None, sampling: SamplingParams) -> Tensor:
    if draw_B is None or sampling.temperature <= 0:
        return logits_BV.argmax(-1)
    return sample(logits_BV, draw_B, sampling.temperature, sampling.top_k, sampling.top_p)


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
    parts = [part.float().logsumexp(-1) for part in torch.split(logits_BV, LOGSUMEXP_CHUNK, dim=1)]
    return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)
