"""Logits -> tokens, one column at a time: rows that go on together, each until it stops.

B rows · V vocabulary · A tokens that an answer may hold at all, where a grammar says so
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from pgcli.engine.device import Stopwatch
from pgcli.engine.grammar import START, Grammar, State
from pgcli.engine.sampling import Sampling, sample
from pgcli.engine.scores import log_sum, sayable
from pgcli.engine.tokens import left_pad
from pgcli.errors import InvalidCheckpoint
from pgcli.model.cache import Cache
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Finish


@dataclass(eq=False)
class Growing:
    """A row under way: its tokens so far, the stop token included, and their log-probabilities.

    `stopped` says that the last token is a stop token. So it is with `finish` "stop", and with
    "length" too where a grammar ended the answer because no further object would have fitted.
    `most` is the row's own limit where it has one, below that of all.
    """

    draws: Random
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    state: State = START
    stopped: bool = False
    finish: Finish = "length"
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    most: int | None = None

    def left(self, limits: Limits) -> int:
        """How many tokens may still come."""
        return (limits.max_new_tokens if self.most is None else self.most) - len(self.tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """Where answers end, and what is never generated: ids from `vocabulary` on, the image's."""

    max_new_tokens: int
    stop_tokens: frozenset[int]
    vocabulary: int
    image_token: int


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


class Running:
    """Rows that go on together in a fixed number of places; one that ends makes room for another.

    A pass's time is divided over the rows alive in it. With a grammar, on the model's device, no
    token is drawn that it does not allow.
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
        """Read the rows' prompts and give each its first token; return those that end with it.

        Where memory runs out in it, the rows that go on are as they were; these begin anew.
        """
        start = self._watch.mark()
        logits_BV, prefix = prefilled(self._model, patch_BPD, prompts)
        token_B, going = self._given(logits_BV, rows)
        if going:
            stay = [place for place, row in enumerate(rows) if row in going]
            token_A = torch.cat([self._token_A, token_B[stay]])
            self._places.seat(prefix, stay)
            self._token_A = token_A
            self.rows += going
        share = self._watch.between(start, self._watch.mark()) / len(rows)
        for row in rows:
            row.prefill_ms += share
        return [row for row in rows if row not in going]

    def step(self) -> list[Growing]:
        """Give every row its next token; return those that end with it, which make room.

        Where memory runs out in it, nothing can go on from there: `drop` the rows.
        """
        rows = self.rows
        start = self._watch.mark()
        logits_AV = self._model.step(self._token_A, self._places)
        self._token_A, going = self._given(logits_AV, rows)
        ended = [place for place, row in enumerate(rows) if row not in going]
        if ended:
            seats = self._places.leave(ended)
            self._token_A = self._token_A[seats]
            self.rows = [rows[seat] for seat in seats]
        share = self._watch.between(start, self._watch.mark()) / len(rows)
        for row in rows:
            row.decode_ms += share
        return [rows[place] for place in ended]

    def drop(self) -> None:
        """Forget all rows, and let go of the memory that they took."""
        self.rows = []
        self._places = self._model.places(self.size)
        self._token_A = self._token_A.new_empty(0)

    def _given(self, logits_BV: Tensor, rows: Sequence[Growing]) -> tuple[Tensor, list[Growing]]:
        """The tokens that the rows are given, and the rows that go on."""
        token_B, logprob_B = choose(logits_BV, rows, self._limits, self._sampling, self._grammar)
        return token_B, _append(rows, token_B, logprob_B, self._limits, self._grammar)


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


def choose(
    logits_BV: Tensor,
    rows: Sequence[Growing],
    limits: Limits,
    sampling: Sampling,
    grammar: Grammar | None = None,
) -> tuple[Tensor, Tensor]:
    """Each row's next token and its log-probability under the model's own distribution."""
    logits_BV = sayable(logits_BV, limits.vocabulary, limits.image_token)
    if grammar is None:
        token_B = draw(logits_BV, rows, sampling)
    else:
        lefts = [row.left(limits) for row in rows]
        allowed = [grammar.allowed(row.state, left) for row, left in zip(rows, lefts, strict=True)]
        logits_BA = logits_BV[:, grammar.token_A].float()
        logits_BA.masked_fill_(~torch.stack(allowed), -torch.inf)
        token_B = grammar.token_A[draw(logits_BA, rows, sampling)]
    chosen_B = logits_BV.gather(1, token_B[:, None])[:, 0].float()
    return token_B, chosen_B - log_sum(logits_BV)


def draw(logits_BV: Tensor, rows: Sequence[Growing], sampling: Sampling) -> Tensor:
    """The column of each row's next token."""
    if sampling.temperature <= 0:
        return logits_BV.argmax(-1)
    draws = [row.draws.random() for row in rows]
    draw_B = torch.tensor(draws, dtype=torch.float32, device=logits_BV.device)
    return sample(logits_BV.float(), draw_B, sampling)


def _append(
    seated: Sequence[Growing],
    token_B: Tensor,
    logprob_B: Tensor,
    limits: Limits,
    grammar: Grammar | None,
) -> list[Growing]:
    """Give every row its token; return those that go on."""
    going = []
    for row, token, logprob in zip(seated, token_B.tolist(), logprob_B.tolist(), strict=True):
        insist_on_number(logprob)
        left = row.left(limits)
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if token in limits.stop_tokens:
            row.stopped = True
            if grammar is None or not grammar.is_curtailed(row.state, left):
                row.finish = "stop"
        elif left > 1:
            going.append(row)
            if grammar is not None:
                row.state = grammar.after(row.state, token)
    return going


def insist_on_number(logprob: float) -> None:
    """Raise InvalidCheckpoint where the model's scores have become NaN."""
    if logprob != logprob:
        raise InvalidCheckpoint(
            "the model's scores are not numbers (NaN)",
            hint="the weights are damaged, or --dtype is too narrow for them: try float32",
        )
