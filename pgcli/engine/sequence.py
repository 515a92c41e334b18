"""A row under way: the tokens that it was given, and where it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from pgcli.engine.grammar import START, Grammar, State
from pgcli.errors import InvalidCheckpoint
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
    ended: bool = False

    def left(self, limits: Limits) -> int:
        """How many tokens may still come."""
        return (limits.max_new_tokens if self.most is None else self.most) - len(self.tokens)

    def take(self, token: int, logprob: float, limits: Limits, grammar: Grammar | None) -> None:
        """Append a token, which may end the row; InvalidCheckpoint where its score is NaN."""
        insist_on_number(logprob)
        left = self.left(limits)
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in limits.stop_tokens:
            self.ended = self.stopped = True
            if grammar is None or not grammar.is_curtailed(self.state, left):
                self.finish = "stop"
        elif left <= 1:
            self.ended = True
        elif grammar is not None:
            self.state = grammar.after(self.state, token)


@dataclass(frozen=True, slots=True)
class Limits:
    """Where answers end, and what is never generated: ids from `vocabulary` on, the image's."""

    max_new_tokens: int
    stop_tokens: frozenset[int]
    vocabulary: int
    image_token: int


def insist_on_number(logprob: float) -> None:
    """Raise InvalidCheckpoint where the model's scores have become NaN."""
    if logprob != logprob:
        raise InvalidCheckpoint(
            "the model's scores are not numbers (NaN)",
            hint="the weights are damaged, or --dtype is too narrow for them: try float32",
        )
