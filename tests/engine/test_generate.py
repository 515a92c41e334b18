"""Logits to answers: where rows end, what is never said, what was likely, what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine import generate as engine
from pgcli.engine.generate import generate
from pgcli.engine.sampler import GREEDY, Sampling
from pgcli.engine.sequence import Growing, Limits
from pgcli.engine.tokenizer import left_pad
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma, make_masks
from tests.support.clock import Clock
from tests.support.random_weights import normal
from tests.support.tiny import PATCHES

VOCABULARY = 12
STOP = 1
LIMITS = Limits(5, frozenset({STOP}), VOCABULARY, image_token=VOCABULARY - 1)
SAMPLED = Sampling(temperature=1)


class Scripted:
    """A model that says what is written: row n's k-th token is `script[n][k]`.

    It is its own cache and its own places, and remembers who sits where and what it was given.
    """

    projector = SimpleNamespace(weight=torch.zeros(0))

    def __init__(self, *script: list[int]):
        self.script = script
        self.read: list[list[int]] = []
        self.seats: list[int] = []
        self.slots = 0

    def cache(self, *, rows: int, slots: int) -> Scripted:
        assert rows == len(self.script)
        self.slots = slots
        return self

    def places(self, rows: int) -> Scripted:
        assert rows == len(self.script)
        return self

    def prefill(self, patch_BPD: Tensor, token_BT: Tensor, is_real: Any, cache: Any) -> Tensor:
        return self.logits(range(len(self.script)))

    def step(self, token_B: Tensor, places: Any) -> Tensor:
        self.read.append(token_B.tolist())
        return self.logits(self.seats)

    def seat(self, prefix: Any, row_B: list[int]) -> None:
        self.seats += row_B

    def leave(self, ended: list[int]) -> list[int]:
        seats = [place for place in range(len(self.seats)) if place not in ended]
        self.seats = [self.seats[place] for place in seats]
        return seats

    def logits(self, rows: Iterable[int]) -> Tensor:
        said = [[*self.script[row], 2, 2, 2, 2, 2][len(self.read)] for row in rows]
        logits_BV = torch.zeros(len(said), VOCABULARY + 3)
        logits_BV[range(len(said)), said] = 40
        return logits_BV


def answers(model: Any, limits: Limits = LIMITS, sampling: Sampling = GREEDY) -> list[Growing]:
    rows = len(model.script)
    patch_BPD = torch.zeros(rows, 2, 4)
    keys = [str(row) for row in range(rows)]
    return generate(model, patch_BPD, [[7, 8, 9]] * rows, keys, limits, sampling)


# --- where rows end


def test_a_row_ends_at_its_stop_token_or_at_the_limit() -> None:
    model = Scripted([3, 4, STOP], [3, 4, 5, 6, 7, 8], [STOP], [3, 4, 5, 6, STOP])
    rows = answers(model)
    assert [row.tokens for row in rows] == [[3, 4, 1], [3, 4, 5, 6, 7], [1], [3, 4, 5, 6, 1]]
    assert [row.finish for row in rows] == ["stop", "length", "stop", "stop"]
    assert [row.stopped for row in rows] == [True, False, True, True]
    assert [len(row.logprobs) for row in rows] == [3, 5, 1, 5]


def test_any_of_several_stop_tokens_ends_a_row() -> None:
    limits = replace(LIMITS, stop_tokens=frozenset({1, 7}))
    rows = answers(Scripted([3, 7, 4], [1, 3], [3, 4, 5, 6, 8]), limits)
    assert [row.tokens for row in rows] == [[3, 7], [1], [3, 4, 5, 6, 8]]


def test_no_pass_is_made_once_every_row_has_ended() -> None:
    model = Scripted([3, 4, STOP], [3, STOP])
    answers(model)
    assert model.read == [[3, 3], [4]]
    model = Scripted([3, 4, 5], [3, 4, 5])
    answers(model, replace(LIMITS, max_new_tokens=1))
    assert model.read == []


def test_a_finished_row_leaves_at_once() -> None:
    """Those that stay go on with their own tokens."""
    model = Scripted([3, STOP], [4, 5, 6, 7], [8, 9, STOP], [10, 2, 3, 4], [5, 6, 7, 8])
    rows = answers(model, replace(LIMITS, max_new_tokens=4))
    assert model.seats == []
    assert model.read[0] == [3, 4, 8, 10, 5]
    assert model.read[1] == [5, 9, 2, 6]
    assert model.read[2] == [6, 3, 7]
    assert rows[1].tokens == [4, 5, 6, 7]
    assert rows[3].tokens == [10, 2, 3, 4]
    assert rows[4].tokens == [5, 6, 7, 8]
    assert rows[0].tokens == [3, STOP]


def test_what_is_read_of_a_prefix_has_room_for_picture_and_prompt_and_no_more() -> None:
    model = Scripted([3, STOP])
    answers(model, replace(LIMITS, max_new_tokens=70))
    assert model.slots == 2 + 3


# --- what is never said


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("loudest", [VOCABULARY - 1, VOCABULARY, VOCABULARY + 2])
def test_the_image_token_and_ids_beyond_the_vocabulary_are_never_said(
    loudest: int, sampling: Sampling
) -> None:
    """The embedding has more rows than there are tokens, and what lies there is noise."""
    rows = answers(Scripted([loudest] * 5), sampling=sampling)
    assert all(token < VOCABULARY - 1 for token in rows[0].tokens)
    assert rows[0].logprobs == pytest.approx([-math.log(VOCABULARY - 1)] * len(rows[0].tokens))


# --- what the model thought of it


@pytest.fixture(scope="module")
def model(tiny: Path) -> PaliGemma:
    return weights.load(tiny, read_config(tiny), dtype=torch.float64)


PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 108], [2, 108]]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=2, top_k=9)])
def test_logprobs_are_those_of_one_pass_over_the_whole_answer(
    model: PaliGemma, sampling: Sampling
) -> None:
    """Recomputed without a cache, row by row; greedy tokens are each the likeliest there."""
    config = model.config
    limits = Limits(6, frozenset({STOP}), config.decoder.vocab_size, config.image_token_id)
    patch_BPD = normal(3, PATCHES, config.decoder.width)
    rows = generate(model, patch_BPD, PROMPTS, list("abc"), limits, sampling)
    for patch_PD, prompt, row in zip(patch_BPD, PROMPTS, rows, strict=True):
        token_BT = torch.tensor([[*prompt, *row.tokens]])
        is_real_BS = torch.ones(1, PATCHES + token_BT.shape[1], dtype=torch.bool)
        is_prefix_BS = is_real_BS.cumsum(1) <= PATCHES + len(prompt)
        place_BS = is_real_BS.cumsum(1)
        masks = make_masks(is_real_BS, is_prefix_BS, place_BS, None)
        hidden = model(patch_PD[None], token_BT, place_BS, masks)[0]
        logits = model.decoder.logits(hidden[len(prompt) - 1 : -1])
        logits[:, config.image_token_id] = -torch.inf
        expected = logits.log_softmax(-1)[range(len(row.tokens)), row.tokens]
        assert row.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        if sampling == GREEDY:
            assert row.tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SAMPLED,
        Sampling(1, top_p=0.9, top_k=5),
    ],
)
def test_scores_that_are_no_numbers_are_refused_with_the_remedy(
    tiny: Path, sampling: Sampling
) -> None:
    damaged = weights.load(tiny, read_config(tiny), dtype=torch.float32)
    damaged.decoder.norm.weight[3] = torch.nan
    limits = Limits(6, frozenset({STOP}), 300, 299)
    patch_BPD = torch.zeros(1, PATCHES, damaged.config.decoder.width)
    with pytest.raises(InvalidCheckpoint, match="NaN") as caught:
        generate(damaged, patch_BPD, [[2, 108]], ["a"], limits, sampling)
    assert "float32" in caught.value.hint


def test_padding_reaches_the_model_as_padding() -> None:
    seen = []

    class Watched(Scripted):
        def prefill(self, patch_BPD: Tensor, token_BT: Tensor, is_real: Any, cache: Any) -> Tensor:
            seen.append((token_BT, is_real))
            return super().prefill(patch_BPD, token_BT, is_real, cache)

    prompts = [[2, 108], [2, 5, 6, 108]]
    watched: Any = Watched([STOP], [STOP])
    generate(watched, torch.zeros(2, 2, 4), prompts, list("ab"), LIMITS, GREEDY)
    token_BT, is_real_BT = left_pad(prompts)
    assert torch.equal(seen[0][0], token_BT)
    assert torch.equal(seen[0][1], is_real_BT)


# --- what it cost


def test_a_passs_time_is_divided_over_the_rows_alive_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Stopwatch", Clock)
    rows = answers(Scripted([STOP], [3, 4, STOP], [3, 4, 5, 6, 7]))
    assert [row.prefill_ms for row in rows] == pytest.approx([10 / 3] * 3)
    assert [row.decode_ms for row in rows] == [0, 5 + 5, 5 + 5 + 10 + 10]
    assert sum(row.prefill_ms + row.decode_ms for row in rows) == pytest.approx(5 * 10)
