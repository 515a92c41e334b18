"""Logits -> tokens, one column at a time: rows that go on together, each until it stops.

B rows · V vocabulary · A tokens that an answer may hold at all, where a grammar says so
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.device.select import Mark, Stopwatch
from pgcli.engine.grammar import Grammar
from pgcli.engine.sampler import Sampling, sample
from pgcli.engine.scores import log_probability, mask_invalid
from pgcli.engine.sequence import Growing, Limits
from pgcli.engine.tokenizer import left_pad
from pgcli.model.kv_cache import Cache
from pgcli.model.paligemma import PaliGemma

#: How many passes tokens are read behind the one that was begun last: else a GPU waits for each.
LAGS = {"cuda": 1}


def generate(
    model: PaliGemma,
    patch_BPD: Tensor,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[str],
    limits: Limits,
    sampling: Sampling,
    grammar: Grammar | None = None,
    lengths: Sequence[int] | None = None,
) -> list[Growing]:
    """Answer a batch of prompts about encoded pictures, each row until it stops on its own.

    `keys` name the rows for their draws, `lengths` are limits of their own, within the one of all.
    """
    running = Running(model, len(prompts), limits, sampling, grammar)
    rows = running.begun(keys, lengths)
    running.join(patch_BPD, prompts, rows)
    while running.rows:
        running.step()
    return rows


class Pass(NamedTuple):
    """What a pass gave its rows, on its way here, and between which marks it ran."""

    rows: Sequence[Growing]
    token_B: Tensor
    logprob_B: Tensor
    start: Mark
    end: Mark
    is_prefill: bool


class Running:
    """Rows that go on together in a fixed number of places; one that ends makes room for another.

    A pass's time is divided over the rows alive in it. With a grammar, on the model's device, no
    token is drawn that it does not allow. On a GPU tokens are read while the next pass goes on: a
    row that has ended is in one pass more, whose token is dropped.
    """

    def __init__(
        self,
        model: PaliGemma,
        size: int,
        limits: Limits,
        sampling: Sampling,
        grammar: Grammar | None = None,
    ):
        self.rows: list[Growing] = []
        self.size = size
        self._model = model
        self._limits, self._sampling, self._grammar = limits, sampling, grammar
        self._places = model.places(size)
        device = model.projector.weight.device
        self._watch = Stopwatch(device)
        self._token_A = torch.empty(0, dtype=torch.long, device=device)
        # what a grammar allows next hangs on the token before
        self._lag = 0 if grammar else LAGS.get(device.type, 0)
        self._unread: deque[Pass] = deque()

    @property
    def free(self) -> int:
        """How many rows may join."""
        return self.size - len(self.rows)

    def begun(self, keys: Sequence[str], lengths: Sequence[int] | None = None) -> list[Growing]:
        """Rows without a token yet; the keys name them for their draws."""
        mosts: Sequence[int | None] = lengths or [None] * len(keys)
        return [
            Growing(Random(f"{self._sampling.seed} {key}"), most=most)
            for key, most in zip(keys, mosts, strict=True)
        ]

    def join(
        self, patch_BPD: Tensor, prompts: Sequence[Sequence[int]], rows: Sequence[Growing]
    ) -> list[Growing]:
        """Read the rows' prompts and give each its first token; return rows that have ended.

        Where memory runs out in it, the rows that go on are as they were; these begin anew.
        """
        start = self._watch.mark()
        logits_BV, prefix = prefilled(self._model, patch_BPD, prompts)
        token_B, logprob_B = self._chosen(logits_BV, rows)
        token_A = torch.cat([self._token_A, token_B])
        self._places.seat(prefix, range(len(rows)))
        self._token_A = token_A
        self.rows = [*self.rows, *rows]
        return self._after(rows, token_B, logprob_B, start, is_prefill=True)

    def step(self) -> list[Growing]:
        """Give every row its next token; return rows that have ended, which make room.

        Where memory runs out in it, nothing can go on from there: `drop` the rows.
        """
        start = self._watch.mark()
        logits_AV = self._model.step(self._token_A, self._places)
        self._token_A, logprob_A = self._chosen(logits_AV, self.rows)
        return self._after(self.rows, self._token_A, logprob_A, start, is_prefill=False)

    def drop(self) -> None:
        """Forget all rows, and let go of the memory that they took."""
        self.rows = []
        self._places = self._model.places(self.size)
        self._token_A = self._token_A.new_empty(0)
        self._unread.clear()

    def _chosen(self, logits_BV: Tensor, rows: Sequence[Growing]) -> tuple[Tensor, Tensor]:
        return select_tokens(logits_BV, rows, self._limits, self._sampling, self._grammar)

    def _after(
        self,
        rows: Sequence[Growing],
        token_B: Tensor,
        logprob_B: Tensor,
        start: Mark,
        *,
        is_prefill: bool,
    ) -> list[Growing]:
        """Have the pass's tokens brought here, and read those of the one that is due."""
        tokens, logprobs = (x_B.to("cpu", non_blocking=True) for x_B in (token_B, logprob_B))
        end = self._watch.mark()
        self._unread.append(Pass(list(rows), tokens, logprobs, start, end, is_prefill))
        ended: list[Growing] = []
        while len(self._unread) > self._lag:
            ended += self._read(self._unread.popleft())
        return ended

    def _read(self, one: Pass) -> list[Growing]:
        """Give the rows of a pass their tokens; those that end make room."""
        milliseconds = self._watch.between(one.start, one.end)  # which waits for the pass
        tokens, logprobs = one.token_B.tolist(), one.logprob_B.tolist()
        alive = [row for row in one.rows if not row.ended]
        for row, token, logprob in zip(one.rows, tokens, logprobs, strict=True):
            if not row.ended:
                row.take(token, logprob, self._limits, self._grammar)
        for row in alive:
            if one.is_prefill:
                row.prefill_ms += milliseconds / len(alive)
            else:
                row.decode_ms += milliseconds / len(alive)
        ended = [place for place, row in enumerate(self.rows) if row.ended]
        if not ended:
            return []
        gone = [self.rows[place] for place in ended]
        seats = self._places.leave(ended)
        self._token_A = self._token_A[seats]
        self.rows = [self.rows[seat] for seat in seats]
        if not self.rows:
            self._unread.clear()
        return gone


def prefilled(
    model: PaliGemma, patch_BPD: Tensor, prompts: Sequence[Sequence[int]], *, room: int = 0
) -> tuple[Tensor, Cache]:
    """The first logits (B, V) after the prompts, and their cache with `room` for as many slots."""
    token_BT, is_real_BT = left_pad(prompts)
    slots = patch_BPD.shape[1] + token_BT.shape[1] + room
    cache = model.cache(rows=len(prompts), slots=slots)
    if is_real_BT is not None:
        is_real_BT = is_real_BT.to(patch_BPD.device)
    return model.prefill(patch_BPD, token_BT.to(patch_BPD.device), is_real_BT, cache), cache


def select_tokens(
    logits_BV: Tensor,
    rows: Sequence[Growing],
    limits: Limits,
    sampling: Sampling,
    grammar: Grammar | None = None,
) -> tuple[Tensor, Tensor]:
    """Each row's next token and its log-probability under the model's own distribution."""
    logits_BV = mask_invalid(logits_BV, limits.vocabulary, limits.image_token)
    if grammar is None:
        token_B = draw(logits_BV, rows, sampling)
    else:
        lefts = [row.left(limits) for row in rows]
        allowed = [grammar.allowed(row.state, left) for row, left in zip(rows, lefts, strict=True)]
        logits_BA = logits_BV[:, grammar.token_A].float()
        logits_BA.masked_fill_(~torch.stack(allowed), -torch.inf)
        token_B = grammar.token_A[draw(logits_BA, rows, sampling)]
    return token_B, log_probability(logits_BV, token_B)


def draw(logits_BV: Tensor, rows: Sequence[Growing], sampling: Sampling) -> Tensor:
    """The column of each row's next token."""
    if sampling.temperature <= 0:
        return logits_BV.argmax(-1)
    draws = [row.draws.random() for row in rows]
    draw_B = torch.tensor(draws, dtype=torch.float32, device=logits_BV.device)
    return sample(logits_BV.float(), draw_B, sampling)
