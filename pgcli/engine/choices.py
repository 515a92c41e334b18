"""Candidate answers scored: how likely the model finds each, all of a row behind one prefix.

B rows · P patches · T prompt tokens · L candidates' tokens this pass · D width · V vocabulary ·
M tokens whose log-probability is asked for
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.device.select import Mark, Stopwatch
from pgcli.engine.generate import prefilled
from pgcli.engine.scores import log_probability, logsumexp, mask_invalid
from pgcli.engine.sequence import Limits, insist_on_number
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Choice

TOKENS_PER_PASS = 256  # of a row's candidates: a prefill of the smallest pictures has more
LOGITS_AT_ONCE = 128  # 132 MB in float32 for 257,216 tokens


class Candidate(NamedTuple):
    """A possible answer as text, and the tokens that spell it."""

    text: str
    ids: tuple[int, ...]


@dataclass(eq=False)
class ChoiceOutput:
    """A row's candidates, and for each the log-likelihood of its tokens and its stop token."""

    candidates: Sequence[Candidate]
    sums: list[float]
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    @property
    def best(self) -> int:
        """The place of the likeliest candidate, of equals the first."""
        return max(range(len(self.sums)), key=self.sums.__getitem__)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The candidates in their order; the probabilities are a softmax of the sums."""
        highest = self.sums[self.best]
        weights = [math.exp(one - highest) for one in self.sums]
        return tuple(
            Choice(candidate.text, one, weight / sum(weights))
            for candidate, one, weight in zip(self.candidates, self.sums, weights, strict=True)
        )

    @property
    def logprob(self) -> float:
        """The mean over the tokens of the best candidate, its stop token included."""
        return self.sums[self.best] / (len(self.candidates[self.best].ids) + 1)


def candidates(texts: Sequence[str], vocabulary: Tokenizer) -> tuple[Candidate, ...]:
    """The texts as answers: outer blanks stripped, and whatever they spell stays text."""
    stripped = [text.strip() for text in texts]
    return tuple(Candidate(text, tuple(vocabulary.encode_text(text))) for text in stripped)


class Pass(NamedTuple):
    """Candidates side by side: what is read, in which branch, and what should follow each token.

    `owners` says of each real token, row by row, its row and which of its candidates it is of.
    """

    token_BL: Tensor
    branch_BL: Tensor
    target_M: Tensor
    owners: list[tuple[int, int]]


def score(
    model: PaliGemma,
    patch_BPD: Tensor,
    prompts: Sequence[Sequence[int]],
    choices: Sequence[Sequence[Candidate]],
    limits: Limits,
) -> list[ChoiceOutput]:
    """How likely the model finds each row's candidates, whatever else is asked about beside them.

    The prefix is read once. The candidates follow it side by side, each seeing the prefix and
    itself, as many in a pass as TOKENS_PER_PASS holds. A pass's time is divided over the rows that
    have candidates in it. Raises InvalidCheckpoint for scores that are NaN.
    """
    device = patch_BPD.device
    watch = Stopwatch(device)
    stop = next(token for token in model.config.stop_tokens if token < limits.vocabulary)
    passes = _passes(choices, stop=stop)
    widest = max(one.token_BL.shape[1] for one in passes)
    marks = [watch.mark()]
    logits_BV, cache = prefilled(model, patch_BPD, prompts, room=widest)
    rows = _begun(logits_BV, choices, limits)
    marks.append(watch.mark())
    alive = [rows]
    for one in passes:
        branch_BL = one.branch_BL.to(device)
        hidden_BLD = model.continuations(one.token_BL.to(device), branch_BL, cache)
        logprobs = _logprobs(model, hidden_BLD[branch_BL >= 0], one.target_M.to(device), limits)
        for (row, number), logprob in zip(one.owners, logprobs, strict=True):
            rows[row].sums[number] += logprob
        marks.append(watch.mark())
        alive.append([rows[row] for row in sorted({row for row, _ in one.owners})])
    _share_time(watch, marks, alive)
    for scored in rows:
        for logprob in scored.sums:
            insist_on_number(logprob)
    return rows


def _begun(
    logits_BV: Tensor, choices: Sequence[Sequence[Candidate]], limits: Limits
) -> list[ChoiceOutput]:
    """The rows with their candidates' first tokens counted, which follow the prefix itself."""
    logits_BV = mask_invalid(logits_BV, limits.vocabulary, limits.image_token)
    firsts = [[candidate.ids[0] for candidate in of_row] for of_row in choices]
    row_M = [row for row, of_row in enumerate(firsts) for _ in of_row]
    logits_M = logits_BV[row_M, [token for of_row in firsts for token in of_row]].float()
    logprobs = iter((logits_M - logsumexp(logits_BV)[row_M]).tolist())
    return [ChoiceOutput(of_row, [next(logprobs) for _ in of_row]) for of_row in choices]


def _logprobs(model: PaliGemma, hidden_MD: Tensor, target_M: Tensor, limits: Limits) -> list[float]:
    """The log-probability of each target where it is to follow, by the model's distribution."""
    found: list[float] = []
    for first in range(0, len(target_M), LOGITS_AT_ONCE):
        some = slice(first, first + LOGITS_AT_ONCE)
        logits_MV = model.decoder.logits(hidden_MD[some])
        logits_MV = mask_invalid(logits_MV, limits.vocabulary, limits.image_token)
        found += log_probability(logits_MV, target_M[some]).tolist()
    return found


def _passes(choices: Sequence[Sequence[Candidate]], *, stop: int) -> list[Pass]:
    """All rows' candidates in as many passes as the row with the most tokens needs."""
    per_row = [_chunks(of_row) for of_row in choices]
    passes = []
    for ranges in zip_longest(*per_row, fillvalue=range(0)):
        seats = [
            [(number, of_row[number].ids) for number in numbers]
            for of_row, numbers in zip(choices, ranges, strict=True)
        ]
        read = [[token for _, ids in row for token in ids] for row in seats]
        branches = [[number for number, ids in row for _ in ids] for row in seats]
        targets = [token for row in seats for _, ids in row for token in (*ids[1:], stop)]
        owners = [(row, number) for row, of_row in enumerate(branches) for number in of_row]
        passes.append(Pass(_padded(read, 0), _padded(branches, -1), torch.tensor(targets), owners))
    return passes


def _chunks(of_row: Sequence[Candidate]) -> list[range]:
    """The row's candidates by their places, cut where a pass would have too many tokens."""
    cuts, used = [0], 0
    for number, candidate in enumerate(of_row):
        if used and used + len(candidate.ids) > TOKENS_PER_PASS:
            cuts.append(number)
            used = 0
        used += len(candidate.ids)
    return [range(*pair) for pair in pairwise([*cuts, len(of_row)])]


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Lists of any lengths as (B, L), filled up at the end."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


def _share_time(
    watch: Stopwatch,
    marks: Sequence[Mark],
    alive: Sequence[Sequence[ChoiceOutput]],
) -> None:
    """Divide each pass's time among its rows: the first pass is the prefill."""
    for number, rows in enumerate(alive):
        share = watch.between(marks[number], marks[number + 1]) / len(rows)
        for row in rows:
            if number == 0:
                row.prefill_ms += share
            else:
                row.decode_ms += share
