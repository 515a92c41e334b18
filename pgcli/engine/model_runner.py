"""Run batches on the model: prefill, decode or score; on CUDA tokens are read one step late.

B rows · R rows allocated · P patches · T prompt tokens or new tokens · V vocabulary
"""

from __future__ import annotations

from collections import abc, deque
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.device.stopwatch import Mark, Stopwatch
from pgcli.engine.choices import branch_logprobs, branch_passes, first_logprobs, first_tokens
from pgcli.engine.grammar import Grammar
from pgcli.engine.image_cache import ImageFeatureCache
from pgcli.engine.sampler import GrammarMask, OutputVocabulary, SamplingParams, select_tokens
from pgcli.engine.scheduler import Batch
from pgcli.engine.sequence import Sequence, check_finite
from pgcli.engine.tokenizer import left_pad
from pgcli.model.paligemma import PaliGemma

#: How many steps may be in flight when the tokens of a step are read, so that a GPU does not wait.
ASYNC_DEPTH = {"cuda": 1}


class InFlightStep(NamedTuple):
    """A step that was launched: its rows, its sampled tokens and its time marks."""

    rows: list[tuple[Sequence, int]]
    token_B: Tensor
    logprob_B: Tensor
    start: Mark
    end: Mark
    is_prefill: bool


class ModelRunner:
    """Runs batches; owns the KV cache and the sampling state of its rows.

    A decode step copies nothing between host and device: the newest tokens, the random numbers and
    the cache's indices stay on the device and are updated in-place. A grammar is the exception, as
    its mask depends on the previous token. With ASYNC_DEPTH a finished sequence takes part in one
    more step, whose token is dropped.
    """

    def __init__(
        self,
        model: PaliGemma,
        vocabulary: OutputVocabulary,
        sampling: SamplingParams,
        *,
        max_rows: int,
        images: ImageFeatureCache | None = None,
        grammar: Grammar | None = None,
    ):
        self.rows: list[Sequence] = []
        self._model, self._vocabulary = model, vocabulary
        self._sampling, self._grammar, self._images = sampling, grammar, images
        self._device = model.projector.weight.device
        self._watch = Stopwatch(self._device)
        self._depth = 0 if grammar else ASYNC_DEPTH.get(self._device.type, 0)
        self._max_rows = max_rows
        self._in_flight: deque[InFlightStep] = deque()
        self._reset()

    def _reset(self) -> None:
        self._cache = self._model.kv_cache(self._max_rows)
        self._token_R = torch.zeros(self._max_rows, dtype=torch.long, device=self._device)
        self._draw_RT = torch.zeros(self._max_rows, 0, device=self._device)
        self._draw_index_R = torch.zeros(self._max_rows, dtype=torch.long, device=self._device)
        self._in_flight.clear()

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sequence]:
        """Run a batch; return the sequences whose tokens or scores have been read.

        After an OOM error, call `preempt` with the sequences that run again.
        """
        if batch.kind == "decode":
            return self.decode()
        assert self._images is not None
        patch_BPD, shares_ms = self._images.get(batch.sequences)
        run = self.score if batch.kind == "score" else self.prefill
        arrived = run(patch_BPD, batch.sequences)
        for sequence, vision_ms in zip(batch.sequences, shares_ms, strict=True):
            sequence.vision_ms += vision_ms
            sequence.batch = len(batch.sequences)
        return arrived

    def prefill(self, patch_BPD: Tensor, group: list[Sequence]) -> list[Sequence]:
        """Prefill a group with encoded images and prompts, and launch its first tokens."""
        start, first, end = self._watch.mark(), len(self.rows), len(self.rows) + len(group)
        room = max(sequence.max_new_tokens for sequence in group) + self._depth
        logits_BV = self._read_prompts(patch_BPD, group, room)
        self._draw(slice(first, end), group)
        token_B, logprob_B = self._select(logits_BV, slice(first, end), group)
        self._token_R[first:end] = token_B
        self.rows = [*self.rows, *group]
        self._release(group)
        return self._launched(group, token_B, logprob_B, start, is_prefill=True)

    def decode(self) -> list[Sequence]:
        """Launch the next token of every row."""
        start, rows = self._watch.mark(), slice(len(self.rows))
        logits_BV = self._model.decode_step(self._token_R, self._cache)
        token_B, logprob_B = self._select(logits_BV, rows, self.rows)
        self._token_R[rows] = token_B
        return self._launched(self.rows, token_B, logprob_B, start, is_prefill=False)

    def score(self, patch_BPD: Tensor, group: list[Sequence]) -> list[Sequence]:
        """Compute the log-likelihood of each candidate of the group."""
        candidates = [sequence.candidates for sequence in group]
        stop_token = next(t for t in self._vocabulary.stop_tokens if t < self._vocabulary.size)
        passes = branch_passes(candidates, stop_token=stop_token)
        marks = [self._watch.mark()]
        logits_BV = self._read_prompts(
            patch_BPD, group, room=max(one.token_BL.shape[1] for one in passes)
        )
        logprobs = [first_logprobs(logits_BV, candidates, self._vocabulary)]
        marks.append(self._watch.mark())
        for one in passes:
            logprobs.append(branch_logprobs(self._model, one, self._cache, self._vocabulary))
            marks.append(self._watch.mark())
        self._cache.remove(range(len(self.rows), self._cache.rows))
        owners = [first_tokens(candidates)[1], *(one.owners for one in passes)]
        for sequence in group:
            sequence.candidate_logprobs = [0.0] * len(sequence.candidates)
        for number, (owned, logprob_M) in enumerate(zip(owners, logprobs, strict=True)):
            for (row, index), logprob in zip(owned, logprob_M.tolist(), strict=True):
                group[row].candidate_logprobs[index] += logprob
            milliseconds = self._watch.between(marks[number], marks[number + 1])
            in_pass = [group[row] for row in sorted({row for row, _ in owned})]
            _share_time(in_pass, milliseconds, is_prefill=number == 0)
        for sequence in group:
            for logprob in sequence.candidate_logprobs:
                check_finite(logprob)
            sequence.finished = True
        self._release(group)
        return group

    @torch.inference_mode()
    def preempt(self, sequences: list[Sequence]) -> None:
        """Free the rows of these sequences, and retain the images of those that run again.

        If no row is left, the KV cache is freed too; if a single sequence ran out of memory, the
        image-feature cache is also cleared.
        """
        gone = set(sequences)
        rows = [row for row, sequence in enumerate(self.rows) if sequence in gone]
        if self._images is not None:
            held = {self.rows[row] for row in rows}
            again = [one for one in sequences if one in held and not one.out_of_memory]
            lost = [one for one in sequences if one not in held and one.out_of_memory]
            self._images.retain(again)
            self._images.release(lost)
        self._free([*rows, *range(len(self.rows), self._cache.rows)])
        if not self.rows:
            self._reset()
            if self._images is not None and len(sequences) == 1:
                self._images.clear()

    def _read_prompts(self, patch_BPD: Tensor, group: list[Sequence], room: int) -> Tensor:
        """Prefill new rows of the cache; the logits (B, V) that follow each prompt."""
        token_BT, is_real_BT = left_pad([sequence.prompt_ids for sequence in group])
        if is_real_BT is not None:
            is_real_BT = is_real_BT.to(self._device)
        token_BT = token_BT.to(self._device)
        return self._model.prefill(patch_BPD, token_BT, is_real_BT, self._cache, room=room)

    def _draw(self, rows: slice, group: list[Sequence]) -> None:
        """Copy the group's random numbers for all tokens to the device."""
        if self._sampling.temperature <= 0:
            return
        draws = [sequence.draws() for sequence in group]
        longest = max(map(len, draws))
        if longest > self._draw_RT.shape[1]:
            wider = torch.zeros(self._max_rows, longest, device=self._device)
            wider[:, : self._draw_RT.shape[1]] = self._draw_RT
            self._draw_RT = wider
        padded = [[*row, *[0.0] * (longest - len(row))] for row in draws]
        self._draw_RT[rows, :longest] = torch.tensor(padded, device=self._device)
        self._draw_index_R[rows].zero_()

    def _select(
        self, logits_BV: Tensor, rows: slice, sequences: list[Sequence]
    ) -> tuple[Tensor, Tensor]:
        """The next token of each row and its log-probability."""
        draw_B = grammar_mask = None
        if self._sampling.temperature > 0:
            index_B = self._draw_index_R[rows]
            draw_B = self._draw_RT[rows].gather(1, index_B[:, None])[:, 0]
            index_B.add_(1).clamp_(max=self._draw_RT.shape[1] - 1)
        if self._grammar is not None:
            allowed = [self._grammar.allowed(one.state, one.tokens_left) for one in sequences]
            grammar_mask = GrammarMask(self._grammar.token_A, torch.stack(allowed))
        return select_tokens(logits_BV, self._sampling, self._vocabulary, draw_B, grammar_mask)

    def _launched(
        self,
        sequences: list[Sequence],
        token_B: Tensor,
        logprob_B: Tensor,
        start: Mark,
        *,
        is_prefill: bool,
    ) -> list[Sequence]:
        """Start to copy a step's tokens to the host, and read the steps beyond the depth."""
        token_B, logprob_B = (x_B.to("cpu", non_blocking=True) for x_B in (token_B, logprob_B))
        rows = [(sequence, sequence.attempts) for sequence in sequences]
        end = self._watch.mark()
        self._in_flight.append(InFlightStep(rows, token_B, logprob_B, start, end, is_prefill))
        arrived: list[Sequence] = []
        while len(self._in_flight) > self._depth:
            step = self._in_flight[0]
            arrived += self._read(step)
            if any(one is step for one in self._in_flight):  # OOM loses no token of other rows
                self._in_flight.popleft()
        return arrived

    def _read(self, step: InFlightStep) -> list[Sequence]:
        """Append a step's tokens to its sequences, and free the rows of those that finish."""
        milliseconds = self._watch.between(step.start, step.end)  # waits for the step
        tokens, logprobs = step.token_B.tolist(), step.logprob_B.tolist()
        arrived = []
        for (sequence, attempt), token, logprob in zip(step.rows, tokens, logprobs, strict=True):
            if sequence.finished or sequence.attempts != attempt:
                continue  # it finished or was preempted while the step was in flight
            arrived.append(sequence)
            sequence.append(token, logprob, self._vocabulary.stop_tokens, self._grammar)
        _share_time(arrived, milliseconds, is_prefill=step.is_prefill)
        self._free([row for row, sequence in enumerate(self.rows) if sequence.finished])
        return arrived

    def _free(self, rows: list[int]) -> None:
        """Free rows of the cache; the last rows fill the holes."""
        if not rows:
            return
        order = self._cache.remove(rows)
        for row, former in enumerate(order):
            if row != former:
                for per_row in (self._token_R, self._draw_RT, self._draw_index_R):
                    per_row[row] = per_row[former]
        self.rows = [self.rows[row] for row in order]
        if not self.rows:
            self._in_flight.clear()

    def _release(self, group: list[Sequence]) -> None:
        if self._images is not None:
            self._images.release(group)


def _share_time(sequences: list[Sequence], milliseconds: float, *, is_prefill: bool) -> None:
    """Divide the time of a pass equally among its sequences."""
    for sequence in sequences:
        if is_prefill:
            sequence.prefill_ms += milliseconds / len(sequences)
        else:
            sequence.decode_ms += milliseconds / len(sequences)


def generate(
    model: PaliGemma,
    patch_BPD: Tensor,
    sequences: abc.Sequence[Sequence],
    vocabulary: OutputVocabulary,
    grammar: Grammar | None = None,
) -> list[Sequence]:
    """Run one batch of sequences with encoded images until all have finished, and return them."""
    group = list(sequences)
    runner = ModelRunner(model, vocabulary, group[0].sampling, max_rows=len(group), grammar=grammar)
    if group[0].candidates:
        return runner.score(patch_BPD, group)
    runner.prefill(patch_BPD, group)
    while runner.rows:
        runner.decode()
    return group
