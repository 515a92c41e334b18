"""The state of one image and prompt while it is answered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from pgcli.device.select import TimedPass
from pgcli.engine.grammar import START_STATE, Grammar, GrammarState
from pgcli.engine.json_grammar import JsonGrammar
from pgcli.engine.sampler import GREEDY, SamplingParams
from pgcli.errors import InvalidCheckpoint
from pgcli.records import DecodedImage, Finish


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer: its text and its token ids."""

    text: str
    ids: tuple[int, ...]


#: A preempted sequence was running, and is finished even after a stop.
Status = Literal["waiting", "preempted", "finished", "out_of_memory"]


@dataclass(eq=False, slots=True)
class Sequence:
    """A prompt about an image, and the tokens generated for it so far.

    `row_index` is the index of its output row. `prompt_ids` follow the image; `head_ids` precede
    it, and are the same in all sequences of a run. `image_key` is the same for all prompts of an
    image, `image_uses` is their number. With `candidates` the answer is chosen among them, else it
    is generated, with a grammar from its state `start`; `tokens` includes the stop token. Times in
    milliseconds include all attempts.
    """

    row_index: int
    prompt: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = GREEDY
    key: str = ""
    image: DecodedImage | None = None
    image_key: int = 0
    image_uses: int = 1
    candidates: tuple[Candidate, ...] = ()
    start: GrammarState = START_STATE
    head_ids: tuple[int, ...] = ()

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    #: `NextTokens.near_logprob_B` of each token, where the vocabulary names locations.
    near_logprobs: list[float] = field(default_factory=list)
    #: For each candidate, the sum over its tokens and its stop token.
    candidate_logprobs: list[float] = field(default_factory=list)
    state: GrammarState = START_STATE  # replaced by `start`
    #: The last token is a stop token. `finish` is then "stop", or "length" if a grammar ended the
    #: answer because no further object fits.
    has_stop_token: bool = False
    finish: Finish = "length"
    status: Status = "waiting"

    #: The passes in which its image was encoded for it, and for the rest of a batch.
    encode_passes: list[TimedPass] = field(default_factory=list)
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    batch: int = 0
    #: The number of preemptions; tokens of earlier attempts are dropped.
    attempts: int = 0
    #: The attempts that ran out of memory with no other row in the batch; the second is the last.
    failed_alone: int = 0

    def __post_init__(self) -> None:
        self.state = self.start

    @property
    def has_ended(self) -> bool:
        return self.status in ("finished", "out_of_memory")

    @property
    def tokens_left(self) -> int:
        return self.max_new_tokens - len(self.tokens)

    @property
    def vision_ms(self) -> float:
        """Its share of the time of encoding; the host waits for it."""
        return sum(encode_pass.ms_of_row() for encode_pass in self.encode_passes)

    def draws(self) -> list[float]:
        """Random numbers from [0, 1), one per token; they depend only on seed and key."""
        stream = Random(f"{self.sampling.seed} {self.key}")
        return [stream.random() for _ in range(self.max_new_tokens)]

    def append(
        self,
        token: int,
        logprob: float,
        stop_tokens: Collection[int],
        grammar: Grammar | JsonGrammar | None,
    ) -> None:
        """Append a sampled token, which may finish the sequence; InvalidCheckpoint for NaN."""
        check_finite(logprob)
        tokens_left = self.tokens_left
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in stop_tokens and not self.sampling.ignore_eos:
            self.status, self.has_stop_token = "finished", True
            if grammar is None or not grammar.truncated_by_limit(self.state, tokens_left):
                self.finish = "stop"
        elif tokens_left <= 1:
            self.status = "finished"
        elif grammar is not None:
            self.state = grammar.advance(self.state, token)

    def restart(self) -> None:
        """Drop the sampled tokens; the same random numbers make the next attempt identical."""
        self.attempts += 1
        self.tokens.clear()
        self.logprobs.clear()
        self.near_logprobs.clear()
        self.candidate_logprobs.clear()
        self.state = self.start


def check_finite(logprob: float) -> None:
    """Raise InvalidCheckpoint if a log-probability is NaN."""
    if logprob != logprob:
        raise InvalidCheckpoint(
            "the model computes NaN",
            hint="the weights are damaged, or the dtype overflows: try <--dtype float32>",
        )
