"""ModelRunner: ends of sequences, invalid tokens, log-probabilities, times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine import model_runner as module
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.sampler import GREEDY, OutputVocabulary, SamplingParams
from pgcli.engine.sequence import Sequence
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma
from tests.support.sequences import (
    Clock,
    make_sequences,
    prompts_of_many_lengths,
    run_together,
    vocabulary_of,
)
from tests.support.tiny import PATCHES, normal

SIZE = 12
STOP = 1
VOCABULARY = OutputVocabulary(SIZE, SIZE - 1, (STOP,))
SAMPLED = SamplingParams(temperature=1)


class Scripted:
    """A model that follows a script: row n's k-th token is `script[n][k]`.

    It is its own cache, and records its rows and input tokens.
    """

    projector = SimpleNamespace(weight=torch.zeros(0))
    allocates_all = False

    def __init__(self, *script: list[int]):
        self.script = script
        self.read: list[list[int]] = []
        self.order: list[int] = []
        self.new_slots = 0

    @property
    def rows(self) -> int:
        return len(self.order)

    def kv_cache(self, max_rows: int) -> Scripted:
        assert max_rows == len(self.script)
        return self

    def prefill(
        self,
        patch_BPD: Tensor,
        token_BT: Tensor,
        is_real: Any,
        cache: Any,
        *,
        head_H: Tensor | None,
        new_slots: int,
    ) -> Tensor:
        self.new_slots = new_slots
        self.order += range(len(self.script))
        return self.logits(self.order)

    def begin_step(self) -> None:
        pass

    def step_logits(self, token_R: Tensor, cache: Any) -> Tensor:
        self.read.append(token_R[: self.rows].tolist())
        return self.logits(self.order)

    def remove(self, rows: Iterable[int], others: Iterable[Tensor] = ()) -> list[int]:
        gone = set(rows)
        order = [row for row in range(self.rows) if row not in gone]
        self.order = [self.order[row] for row in order]
        for other in others:
            other[: len(order)] = other[order]
        return order

    def logits(self, rows: Iterable[int]) -> Tensor:
        tokens = [[*self.script[row], 2, 2, 2, 2, 2][len(self.read)] for row in rows]
        logits_BV = torch.zeros(len(tokens), SIZE + 3)
        logits_BV[range(len(tokens)), tokens] = 40
        return logits_BV


def answers(
    model: Any,
    max_new_tokens: int = 5,
    vocabulary: OutputVocabulary = VOCABULARY,
    sampling: SamplingParams = GREEDY,
) -> list[Sequence]:
    rows = len(model.script)
    patch_BPD = torch.zeros(rows, 2, 4)
    return run_together(
        model, patch_BPD, [[7, 8, 9]] * rows, vocabulary, max_new_tokens, sampling=sampling
    )


# --- end of sequences


def test_a_sequence_ends_at_its_stop_token_or_at_the_limit():
    model = Scripted([3, 4, STOP], [3, 4, 5, 6, 7, 8], [STOP], [3, 4, 5, 6, STOP])
    rows = answers(model)
    assert [row.tokens for row in rows] == [[3, 4, 1], [3, 4, 5, 6, 7], [1], [3, 4, 5, 6, 1]]
    assert [row.finish for row in rows] == ["stop", "length", "stop", "stop"]
    assert [row.has_stop_token for row in rows] == [True, False, True, True]
    assert [len(row.logprobs) for row in rows] == [3, 5, 1, 5]


def test_a_prefill_reserves_slots_for_the_longest_answer():
    model = Scripted([3, STOP])
    answers(model, 70)
    assert model.new_slots == 70


# --- invalid tokens


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("loudest", [SIZE - 1, SIZE, SIZE + 2])
def test_the_image_token_and_ids_beyond_the_vocabulary_are_never_generated(loudest, sampling):
    """The embedding has more rows than there are tokens; the extra rows are noise."""
    rows = answers(Scripted([loudest] * 5), sampling=sampling)
    assert all(token < SIZE - 1 for token in rows[0].tokens)
    assert rows[0].logprobs == pytest.approx([-math.log(SIZE - 1)] * len(rows[0].tokens))


# --- log-probabilities


@pytest.fixture(scope="module")
def model(tiny) -> PaliGemma:
    return weights.load_paligemma(tiny, read_config(tiny), dtype=torch.float64)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, SamplingParams(1, top_p=0.9, top_k=5)])
def test_nan_logits_are_an_error_with_a_hint(tiny, sampling):
    damaged = weights.load_paligemma(tiny, read_config(tiny), dtype=torch.float32)
    damaged.decoder.norm.weight[3] = torch.nan
    vocabulary = OutputVocabulary(300, 299, (STOP,))
    patch_BPD = torch.zeros(1, PATCHES, damaged.config.decoder.width)
    with pytest.raises(InvalidCheckpoint, match="NaN") as caught:
        run_together(damaged, patch_BPD, [[2, 108]], vocabulary, 6, sampling=sampling)
    assert "float32" in caught.value.hint


# --- times


def test_the_time_of_a_pass_is_divided_over_the_rows_in_it(monkeypatch):
    monkeypatch.setattr(module, "Stopwatch", Clock)
    rows = answers(Scripted([STOP], [3, 4, STOP], [3, 4, 5, 6, 7]))
    assert [row.prefill_ms for row in rows] == pytest.approx([10 / 3] * 3)
    assert [row.decode_ms for row in rows] == [0, 5 + 5, 5 + 5 + 10 + 10]
    assert sum(row.prefill_ms + row.decode_ms for row in rows) == pytest.approx(5 * 10)


# --- sequences that join, and steps in flight


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_tokens_do_not_depend_on_how_late_they_are_read(model, monkeypatch, temperature):
    """On a GPU, the next step is launched before the tokens of the previous one are read."""
    prompts, patch_BPD = prompts_of_many_lengths(9), normal(9, PATCHES, model.config.decoder.width)
    vocabulary = vocabulary_of(model, *range(0, model.config.decoder.vocab_size, 9))
    lengths = [1, 12, 3, 12, 12, 2, 12, 12, 7]
    sampling, found = SamplingParams(temperature=temperature, seed=3), []
    for depth in (0, 1, 2, 5):
        monkeypatch.setitem(module.ASYNC_DEPTH, "cpu", depth)
        runner = ModelRunner(model, vocabulary, sampling, max_rows=4)
        sequences, steps = make_sequences(prompts, 12, sampling), 0
        for row, sequence in enumerate(sequences):
            sequence.max_new_tokens = lengths[row]
            while len(runner.rows) == 4:
                runner.decode()
                steps += 1
            runner.prefill(patch_BPD[row : row + 1], [sequence])
        while runner.rows:
            runner.decode()
            steps += 1
        assert all(sequence.has_ended for sequence in sequences)
        assert steps <= 40 + 9 * depth
        found.append(
            [(one.tokens, one.logprobs, one.finish, one.has_stop_token) for one in sequences]
        )
    assert len({len(tokens) for tokens, *_ in found[0]}) > 3
    for later in found[1:]:
        for (tokens, logprobs, *end), (others, their_logprobs, *their_end) in zip(
            found[0], later, strict=True
        ):
            assert tokens == others
            assert end == their_end
            assert logprobs == pytest.approx(their_logprobs, abs=1e-9)


def test_preempted_sequences_get_no_token_of_steps_in_flight(model, monkeypatch):
    monkeypatch.setitem(module.ASYNC_DEPTH, "cpu", 2)
    vocabulary, sampling = vocabulary_of(model, 1), SamplingParams(temperature=1, seed=2)
    prompts, patch_BPD = prompts_of_many_lengths(3), normal(3, PATCHES, model.config.decoder.width)
    runner = ModelRunner(model, vocabulary, sampling, max_rows=3)
    sequences = make_sequences(prompts, 5, sampling)
    runner.prefill(patch_BPD[:1], sequences[:1])
    runner.prefill(patch_BPD[1:], sequences[1:])
    runner.decode()
    runner.preempt(sequences[1:])
    for sequence in sequences[1:]:
        sequence.restart()
    runner.decode()
    runner.prefill(patch_BPD[1:], sequences[1:])
    while runner.rows:
        runner.decode()
    expected = run_together(model, patch_BPD, prompts, vocabulary, 5, sampling=sampling)
    assert [one.tokens for one in sequences] == [one.tokens for one in expected]
