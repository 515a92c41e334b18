"""Score candidate answers: the model reads all candidates of a row as branches of one prefix.

B rows · L candidates' tokens of this pass · D width · V vocabulary · M target tokens
"""

from __future__ import annotations

import itertools
import math
from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.engine.memory import TOKENS_PER_PASS
from pgcli.engine.sampler import OutputVocabulary, log_probability, logsumexp, mask_invalid
from pgcli.engine.sequence import Candidate, check_finite
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.kv_cache import KVCache
from pgcli.model.paligemma import PaliGemma
from pgcli.model.transfer import to_device
from pgcli.records import Choice

LOGITS_AT_ONCE = 128  # 132 MB in float32 for 257,216 tokens

Candidates = abc.Sequence[Candidate]


#: The row and the candidate index that a token belongs to.
TokenOwner = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ChoiceOutput:
    """A row's candidates, with the log-likelihood of each one's tokens and stop token."""

    candidates: Candidates
    logprobs: abc.Sequence[float]

    @property
    def best(self) -> int:
        """The index of the likeliest candidate; the first of equal ones."""
        return max(range(len(self.logprobs)), key=self.logprobs.__getitem__)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The candidates in their order; the probabilities are a softmax of `logprobs`."""
        highest = self.logprobs[self.best]
        weights = [math.exp(logprob - highest) for logprob in self.logprobs]
        total = sum(weights)
        return tuple(
            Choice(candidate.text, logprob, weight / total)
            for candidate, logprob, weight in zip(
                self.candidates, self.logprobs, weights, strict=True
            )
        )

    @property
    def logprob(self) -> float:
        """The mean over the tokens of the best candidate, including its stop token."""
        return self.logprobs[self.best] / (len(self.candidates[self.best].ids) + 1)


class BranchInputs(NamedTuple):
    """The candidates of one pass: their tokens, each token's branch, and the token that follows it.

    `owners` holds the row and the candidate index of each real token, row by row.
    """

    token_BL: Tensor
    branch_BL: Tensor
    target_M: Tensor
    owners: list[TokenOwner]


def make_candidates(texts: abc.Sequence[str], tokenizer: Tokenizer) -> tuple[Candidate, ...]:
    """The stripped texts as candidates; control tokens in them are encoded as plain text."""
    stripped = [text.strip() for text in texts]
    return tuple(Candidate(text, tuple(tokenizer.encode_text(text))) for text in stripped)


def first_candidate_tokens(rows: abc.Sequence[Candidates]) -> tuple[list[int], list[TokenOwner]]:
    """Every candidate's first token, which follows the prefix, and its row and candidate index."""
    owners = [(row, index) for row, of_row in enumerate(rows) for index in range(len(of_row))]
    return [rows[row][index].ids[0] for row, index in owners], owners


def first_logprobs(
    logits_BV: Tensor, rows: abc.Sequence[Candidates], vocabulary: OutputVocabulary
) -> Tensor:
    """The log-probability (M,) of every candidate's first token after the prefix."""
    tokens, owners = first_candidate_tokens(rows)
    logits_BV = mask_invalid(logits_BV, vocabulary)
    row_M = to_device(torch.tensor([row for row, _ in owners]), logits_BV.device)
    token_M = to_device(torch.tensor(tokens), logits_BV.device)
    return logits_BV[row_M, token_M].float() - logsumexp(logits_BV)[row_M]


def branch_logprobs(
    model: PaliGemma, branches: BranchInputs, cache: KVCache, vocabulary: OutputVocabulary
) -> Tensor:
    """The log-probability (M,) of each target of a pass."""
    device = model.projector.weight.device
    token_BL, branch_BL = (to_device(x, device) for x in branches[:2])
    hidden_BLD = model.score_branches(token_BL, branch_BL, cache)
    # found on the host: a mask as an index waits for the device
    real_M = (branches.branch_BL >= 0).flatten().nonzero()[:, 0]
    hidden_MD = hidden_BLD.flatten(0, 1)[to_device(real_M, device)]
    target_M = to_device(branches.target_M, device)
    logprobs = []
    for first in range(0, len(target_M), LOGITS_AT_ONCE):
        chunk = slice(first, first + LOGITS_AT_ONCE)
        logits_MV = mask_invalid(model.decoder.logits(hidden_MD[chunk]), vocabulary)
        logprobs.append(log_probability(logits_MV, target_M[chunk]))
    return torch.cat(logprobs)


def branch_passes(rows: abc.Sequence[Candidates], *, stop_token: int) -> list[BranchInputs]:
    """All rows' candidates in as many passes as the row with the most tokens needs."""
    per_row = [_chunks(of_row) for of_row in rows]
    passes = []
    for ranges in itertools.zip_longest(*per_row, fillvalue=range(0)):
        chosen = [
            [(index, of_row[index].ids) for index in indices]
            for of_row, indices in zip(rows, ranges, strict=True)
        ]
        read = [[token for _, ids in row for token in ids] for row in chosen]
        branches = [[index for index, ids in row for _ in ids] for row in chosen]
        targets = [token for row in chosen for _, ids in row for token in (*ids[1:], stop_token)]
        owners = [(row, index) for row, of_row in enumerate(branches) for index in of_row]
        passes.append(
            BranchInputs(_padded(read, 0), _padded(branches, -1), torch.tensor(targets), owners)
        )
    return passes


def sum_logprobs(
    rows: abc.Sequence[Candidates], passes: abc.Iterable[tuple[list[TokenOwner], Tensor]]
) -> list[list[float]]:
    """The log-likelihood of every row's candidates, from each pass's owners and (M,) tensor.

    Raises InvalidCheckpoint for NaN.
    """
    sums = [[0.0] * len(of_row) for of_row in rows]
    for owners, logprob_M in passes:
        for (row, index), logprob in zip(owners, logprob_M.tolist(), strict=True):
            sums[row][index] += logprob
    for logprob in itertools.chain.from_iterable(sums):
        check_finite(logprob)
    return sums


def _chunks(of_row: Candidates) -> list[range]:
    """Ranges of the row's candidate indices, each with at most `TOKENS_PER_PASS` tokens.

    A longer candidate gets its own range.
    """
    cuts, used = [0], 0
    for index, candidate in enumerate(of_row):
        if used and used + len(candidate.ids) > TOKENS_PER_PASS:
            cuts.append(index)
            used = 0
        used += len(candidate.ids)
    return [range(*pair) for pair in itertools.pairwise([*cuts, len(of_row)])]


def _padded(rows: abc.Sequence[abc.Sequence[int]], fill: int) -> Tensor:
    """Lists of any lengths as a tensor (B, L), padded on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
