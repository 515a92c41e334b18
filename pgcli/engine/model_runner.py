"""Run batches on the model: prefill, decode or score; on CUDA tokens are read one step late.

B rows · R rows allocated · P patches · T prompt tokens · D width · V vocabulary
"""

from __future__ import annotations

from collections import abc, deque
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import Stopwatch, TimeMark
from pgcli.engine.choices import (
    TokenOwner,
    branch_logprobs,
    branch_passes,
    first_candidate_tokens,
    first_logprobs,
    sum_logprobs,
)
from pgcli.engine.grammar import Grammar, GrammarRows
from pgcli.engine.image_cache import ImageCacheStats, ImageFeatureCache
from pgcli.engine.json_grammar import JsonGrammar, JsonRows
from pgcli.engine.memory import LONG_PROMPT, OutOfMemory, run_or_free
from pgcli.engine.recorded_step import step_recorder
from pgcli.engine.sampler import (
    NextTokens,
    OutputVocabulary,
    Sampler,
    SamplingParams,
)
from pgcli.engine.scheduler import Batch
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import left_pad
from pgcli.model.optimize import overflow_named
from pgcli.model.paligemma import PaliGemma
from pgcli.model.transfer import current, to_device, to_host

#: How many steps may be in flight when the tokens of a step are read, so that a GPU does not wait.
ASYNC_DEPTH = {"cuda": 1}


class InFlightStep(NamedTuple):
    """A step that was launched: its rows, its sampled tokens and its time marks."""

    rows: list[tuple[Sequence, int]]
    tokens: NextTokens
    start: TimeMark
    end: TimeMark
    is_prefill: bool


class InFlightScore(NamedTuple):
    """Launched scoring passes: for each, the owners of its tokens and the log-probabilities that
    are being copied to the host; and the time marks between the passes.
    """

    rows: list[tuple[Sequence, int]]
    owners: list[list[TokenOwner]]
    logprobs: list[Tensor]
    marks: list[TimeMark]


class ModelRunner:
    """Runs batches; owns the KV cache and the sampling state of its rows.

    The inputs of a decode step stay on the device and are updated in-place: the newest tokens, the
    random numbers, the cache's indices and the grammar states. On CUDA the step is captured once as
    a CUDA graph and replayed. Tokens are copied to the host asynchronously and read ASYNC_DEPTH
    steps later; after a stop token, a sequence takes part in that many more steps, and their tokens
    are dropped. With a depth of 0, a step also reads the tokens that the grammar forces after the
    newest one.
    """

    def __init__(
        self,
        model: PaliGemma,
        vocabulary: OutputVocabulary,
        sampling: SamplingParams,
        *,
        max_rows: int,
        images: ImageFeatureCache | None = None,
    ):
        self.rows: list[Sequence] = []
        self._model, self._vocabulary = model, vocabulary
        self._sampling = sampling
        self._grammar: Grammar | JsonGrammar | None = None
        self._images = images or ImageFeatureCache(model, Preprocessing(), ImageCacheStats())
        self._device = model.projector.weight.device
        self._watch = Stopwatch(self._device)
        self._depth = ASYNC_DEPTH.get(self._device.type, 0)
        self._recorder = step_recorder(model)
        self._max_rows = max_rows
        self._in_flight: deque[InFlightStep | InFlightScore] = deque()
        self._ran_out = False
        self._reset()

    def _reset(self) -> None:
        self._cache = self._model.kv_cache(self._max_rows)
        self._cache.allocates_all &= not self._ran_out  # all rows may be too many
        self._token_R = torch.zeros(self._max_rows, dtype=torch.long, device=self._device)
        self._sampler = Sampler(
            self._sampling, self._vocabulary, max_rows=self._max_rows, device=self._device
        )
        self.set_grammar(self._grammar)
        self._in_flight.clear()
        self._drop_recordings()

    def set_grammar(self, grammar: Grammar | JsonGrammar | None) -> None:
        """Bind the answers of the next rows to a grammar, or to none. No row may be running."""
        self._grammar = grammar
        self._grammar_rows: GrammarRows | JsonRows | None = None
        if grammar is not None:
            self._grammar_rows = grammar.rows(max_rows=self._max_rows, device=self._device)

    def _drop_recordings(self) -> None:
        if self._recorder is not None:
            self._recorder.drop()

    @property
    def reads_late(self) -> bool:
        """Whether tokens are read while a later step runs."""
        return self._depth > 0

    @property
    def cache_bytes(self) -> int:
        return self._cache.nbytes

    def add(self, sequence: Sequence) -> None:
        """Stage the image of a sequence that will be in a later batch."""
        self._images.stage(sequence)

    def run(self, batch: Batch) -> None:
        """Run a batch. Raises OutOfMemory; then call `preempt` with the preempted sequences.

        Scores in flight are read before it is raised: their sequences finish and do not run again.
        """
        with current(self._device):
            try:
                run_or_free(partial(self._run, batch), self._drop_recordings)
            except OutOfMemory:
                self._read_scores()
                raise

    @torch.inference_mode()
    def _run(self, batch: Batch) -> None:
        if batch.kind == "decode":
            self.decode()
            return
        patch_BPD = self._images.get(batch.sequences)
        run = self.score if batch.kind == "score" else self.prefill
        run(patch_BPD, batch.sequences)
        for sequence in batch.sequences:
            sequence.batch = len(batch.sequences)

    def prefill(self, patch_BPD: Tensor, group: list[Sequence]) -> None:
        """Prefill a group with encoded images and prompts, and sample its first tokens."""
        start, first, end = self._watch.mark(), len(self.rows), len(self.rows) + len(group)
        new_slots = max(sequence.max_new_tokens for sequence in group) + self._depth
        if self._cache.allocates_all:  # also for longer prompts: growing takes twice the memory
            new_slots += max(0, LONG_PROMPT - max(len(sequence.prompt_ids) for sequence in group))
        logits_BV = self._prefill_prompts(patch_BPD, group, new_slots)
        if self._sampling.temperature > 0:
            self._sampler.insert(slice(first, end), [sequence.draws() for sequence in group])
        if self._grammar_rows is not None:
            states = [(sequence.state, sequence.tokens_left) for sequence in group]
            self._grammar_rows.insert(slice(first, end), states)
        tokens = self._select(logits_BV, slice(first, end))
        self._token_R[first:end] = tokens.token_B
        self.rows = [*self.rows, *group]
        self._images.release(group)
        self._enqueue(group, tokens, start, is_prefill=True)
        self._read_steps(self._depth)

    def decode(self) -> None:
        """Compute and sample the next token of every row, without waiting for the device.

        Steps in flight are read first if one of them is the last of a sequence: the next step would
        compute tokens that are dropped.
        """
        if any(sequence.tokens_left <= len(self._in_flight) for sequence in self.rows):
            self._read_steps(0)
        if not self.rows:
            self._read_steps(0)
            return
        start = self._watch.mark()
        self._cache.begin_step()
        self._enqueue(self.rows, self._run_step(), start, is_prefill=False)
        self._read_steps(self._depth)

    def _run_step(self) -> NextTokens:
        """The device's part of a step; it is recorded for padded rows, with those not in use."""
        if self._recorder is None:
            return self._step(len(self.rows))
        rows = self._cache.padded_rows
        if self._grammar_rows is not None and not self._grammar_rows.can_record:
            return self._step(rows)
        memory = [self._token_R, *self._cache.tensors, *self._sampler.tensors]
        if self._grammar_rows is not None:
            memory += self._grammar_rows.tensors
        return self._recorder.run(partial(self._step, rows), rows, memory)

    def _step(self, rows: int) -> NextTokens:
        """Compute and select the next token of so many rows; the next step reads it."""
        logits_BV = self._model.step_logits(self._token_R, self._cache)[:rows]
        tokens = self._select(logits_BV, slice(rows))
        self._token_R[:rows] = tokens.token_B
        return tokens

    def score(self, patch_BPD: Tensor, group: list[Sequence]) -> None:
        """Compute the log-likelihood of each candidate of the group."""
        candidates = [sequence.candidates for sequence in group]
        stop_token = next(t for t in self._vocabulary.stop_tokens if t < self._vocabulary.size)
        passes = branch_passes(candidates, stop_token=stop_token)
        marks = [self._watch.mark()]
        logits_BV = self._prefill_prompts(
            patch_BPD, group, new_slots=max(branches.token_BL.shape[1] for branches in passes)
        )
        logprobs = [to_host(first_logprobs(logits_BV, candidates, self._vocabulary))]
        marks.append(self._watch.mark())
        for branches in passes:
            found_M = branch_logprobs(self._model, branches, self._cache, self._vocabulary)
            logprobs.append(to_host(found_M))
            marks.append(self._watch.mark())
        self._cache.remove(range(len(self.rows), self._cache.rows))
        owners = [first_candidate_tokens(candidates)[1], *(branches.owners for branches in passes)]
        rows = [(sequence, sequence.attempts) for sequence in group]
        self._in_flight.append(InFlightScore(rows, owners, logprobs, marks))
        self._images.release(group)
        self._read_steps(self._depth)

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all sequences and images; memory and recorded steps are kept for the next ones."""
        self._free([*range(self._cache.rows)])
        self._in_flight.clear()
        self._images.forget()

    @torch.inference_mode()
    def preempt(self, sequences: list[Sequence]) -> None:
        """Free the rows of these sequences, and retain the images of those that run again.

        If no row is left, the KV cache is freed too; if a single sequence ran out of memory, the
        image-feature cache is also cleared.
        """
        self._ran_out, preempted = True, set(sequences)
        rows = [row for row, sequence in enumerate(self.rows) if sequence in preempted]
        held = {self.rows[row] for row in rows}
        lost = {sequence for sequence in sequences if sequence.status == "out_of_memory"}
        self._images.retain(sequence for sequence in sequences if sequence in held - lost)
        self._images.release(sequence for sequence in sequences if sequence in lost - held)
        self._free([*rows, *range(len(self.rows), self._cache.rows)])
        if not self.rows:
            self._reset()
            if len(sequences) == 1:
                self._images.clear()

    def _prefill_prompts(self, patch_BPD: Tensor, group: list[Sequence], new_slots: int) -> Tensor:
        """Prefill new rows of the cache; the logits (B, V) that follow each prompt."""
        token_BT, is_real_BT = left_pad([sequence.prompt_ids for sequence in group])
        if is_real_BT is not None:
            is_real_BT = to_device(is_real_BT, self._device)
        token_BT, head_H = to_device(token_BT, self._device), None
        if head_ids := group[0].head_ids:
            head_H = to_device(torch.tensor(head_ids), self._device)
        return self._model.prefill(
            patch_BPD, token_BT, is_real_BT, self._cache, head_H=head_H, new_slots=new_slots
        )

    def _select(self, logits_BV: Tensor, rows: slice) -> NextTokens:
        """The next token of each row and its log-probability."""
        if self._grammar_rows is None:
            return self._sampler.select(logits_BV, rows, None)
        tokens = self._sampler.select(logits_BV, rows, self._grammar_rows.mask(rows))
        self._grammar_rows.advance(rows, tokens.token_B)
        return tokens

    def _enqueue(
        self, sequences: list[Sequence], tokens: NextTokens, start: TimeMark, *, is_prefill: bool
    ) -> None:
        """Start to copy a step's tokens to the host."""
        tokens = tokens.copy_to_host(len(sequences))
        rows = [(sequence, sequence.attempts) for sequence in sequences]
        end = self._watch.mark()
        self._in_flight.append(InFlightStep(rows, tokens, start, end, is_prefill))

    def _read_steps(self, remaining: int) -> None:
        """Read the oldest steps until `remaining` are in flight."""
        while len(self._in_flight) > remaining:
            self._read_oldest()

    def _read_scores(self) -> None:
        """Read all scores in flight; steps stay in flight."""
        in_flight, self._in_flight = self._in_flight, deque()
        for step in in_flight:
            if isinstance(step, InFlightScore):
                self._read_score(step)
            else:
                self._in_flight.append(step)

    def _read_oldest(self) -> None:
        """Read the oldest step in flight, and free the rows of finished sequences.

        Memory may run out before the tokens arrive and when rows are freed. The step is removed in
        between, so that its tokens are neither lost nor appended twice.
        """
        oldest = self._in_flight[0]
        if isinstance(oldest, InFlightScore):
            self._read_score(oldest)
        else:
            self._read_tokens(oldest)
        self._in_flight.popleft()
        self._free([row for row, sequence in enumerate(self.rows) if sequence.has_ended])

    def _read_tokens(self, step: InFlightStep) -> None:
        """Append the tokens of a step."""
        milliseconds = self._watch.between(step.start, step.end)
        token_B, logprob_B, near_logprob_B = step.tokens
        logprobs = logprob_B.tolist()
        near_logprobs = logprobs if near_logprob_B is None else near_logprob_B.tolist()
        arrived = []
        tokens = zip(step.rows, token_B.tolist(), logprobs, near_logprobs, strict=True)
        with overflow_named(self._model):
            for (sequence, attempt), token, logprob, near in tokens:
                if sequence.has_ended or sequence.attempts != attempt:
                    continue  # it finished or was preempted while the step was in flight
                arrived.append(sequence)
                sequence.append(token, logprob, self._vocabulary.stop_tokens, self._grammar)
                if near_logprob_B is not None:
                    sequence.near_logprobs.append(near)
        share_time(arrived, milliseconds, is_prefill=step.is_prefill)

    def _read_score(self, score: InFlightScore) -> None:
        """Finish sequences with the log-likelihoods of their candidates."""
        group = [sequence for sequence, _ in score.rows]
        between = map(self._watch.between, score.marks, score.marks[1:])
        for number, (owned, milliseconds) in enumerate(zip(score.owners, between, strict=True)):
            in_pass = [group[row] for row in sorted({row for row, _ in owned})]
            share_time(in_pass, milliseconds, is_prefill=number == 0)
        pairs = zip(score.owners, score.logprobs, strict=True)
        with overflow_named(self._model):
            sums = sum_logprobs([sequence.candidates for sequence in group], pairs)
        for (sequence, attempt), logprobs in zip(score.rows, sums, strict=True):
            if sequence.attempts == attempt:
                sequence.candidate_logprobs = logprobs
                sequence.status = "finished"

    def _free(self, rows: list[int]) -> None:
        """Free rows of the cache; the last rows fill the holes."""
        if not rows:
            return
        others = [self._token_R, *self._sampler.tensors]
        if self._grammar_rows is not None:
            others.append(self._grammar_rows.state_RF)
        order = self._cache.remove(rows, others)
        self.rows = [self.rows[row] for row in order]
        if not self.rows:
            scores = (step for step in self._in_flight if isinstance(step, InFlightScore))
            self._in_flight = deque(scores)


def generate(
    model: PaliGemma,
    patch_BPD: Tensor,
    sequences: abc.Sequence[Sequence],
    vocabulary: OutputVocabulary,
    grammar: Grammar | JsonGrammar | None = None,
) -> list[Sequence]:
    """Run one batch of sequences with encoded images until all have finished, and return them."""
    group = list(sequences)
    runner = ModelRunner(model, vocabulary, group[0].sampling, max_rows=len(group))
    runner.set_grammar(grammar)
    if group[0].candidates:
        runner.score(patch_BPD, group)
        runner.decode()  # without rows, it reads the scores
        return group
    runner.prefill(patch_BPD, group)
    while runner.rows:
        runner.decode()
    return group


def share_time(sequences: list[Sequence], milliseconds: float, *, is_prefill: bool) -> None:
    """Divide the time of a pass equally among its sequences, each listed once for each token."""
    for sequence in sequences:
        if is_prefill:
            sequence.prefill_ms += milliseconds / len(sequences)
        else:
            sequence.decode_ms += milliseconds / len(sequences)
