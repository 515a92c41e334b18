"""The host neither waits for the device nor makes it wait: steps, joins, departures and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine import image_cache
from pgcli.engine import model_runner as module
from pgcli.engine.image_cache import ImageCacheStats, ImageFeatureCache
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.sampler import GREEDY, SamplingParams
from pgcli.engine.scheduler import Batch
from pgcli.engine.sequence import Sequence
from pgcli.model.kv_cache import KVCache
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from tests.support.fake_device import FakeDevice, FakeStopwatch
from tests.support.random_weights import normal
from tests.support.sequences import make_sequences, prompts_of_many_lengths, vocabulary_of
from tests.support.tiny import PATCHES

SAMPLED = SamplingParams(temperature=1, top_p=0.9, top_k=40)


@pytest.fixture(params=["tiny", "tiny2"])
def model(request: pytest.FixtureRequest) -> PaliGemma:
    folder: Path = request.getfixturevalue(request.param)
    return weights.load(folder, read_config(folder), dtype=torch.float32)


@pytest.fixture
def make_runner(
    model: PaliGemma, monkeypatch: pytest.MonkeyPatch
) -> Callable[[SamplingParams], ModelRunner]:
    """Makes runners as on a GPU: fixed shapes, and tokens read a step late."""
    monkeypatch.setitem(module.ASYNC_DEPTH, "cpu", 1)
    monkeypatch.setattr(module, "Stopwatch", FakeStopwatch)

    def make(sampling: SamplingParams) -> ModelRunner:
        vocabulary = vocabulary_of(model, 1)._replace(locations=range(300, 1324))
        runner = ModelRunner(model, vocabulary, sampling, max_rows=4)
        runner._cache.fixed_shape = True
        return runner

    return make


def images(model: PaliGemma, count: int) -> Tensor:
    return normal(count, PATCHES, model.config.decoder.width).float()


def of_lengths(sampling: SamplingParams, lengths: list[int]) -> list[Sequence]:
    """Sequences with prompts of many lengths that end after these numbers of tokens."""
    sequences = make_sequences(prompts_of_many_lengths(len(lengths)), 1, sampling)
    for sequence, length in zip(sequences, lengths, strict=True):
        sequence.max_new_tokens = length
    return sequences


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@torch.inference_mode()
def test_joins_steps_and_departures_wait_for_nothing(
    make_runner: Any, model: PaliGemma, sampling: SamplingParams
) -> None:
    runner, patch_BPD = make_runner(sampling), images(model, 5)
    sequences = of_lengths(sampling, [9, 2, 5, 4, 3])
    sequences[3].row_index = sequences[4].row_index = 2  # two more answers of the third prompt
    with FakeDevice() as device:
        runner.prefill(patch_BPD[:2], sequences[:2])
        runner.decode()
        runner.decode()
        runner.prefill(patch_BPD[2:], sequences[2:])
        while runner.rows:
            runner.decode()
    assert [len(one.tokens) for one in sequences] == [9, 2, 5, 4, 3]
    assert device.copies_to_host > 9


@pytest.fixture
def running(make_runner: Any, model: PaliGemma) -> Iterator[ModelRunner]:
    """A runner with three running rows."""
    runner = make_runner(SAMPLED)
    with torch.inference_mode():
        runner.prefill(images(model, 3), make_sequences(prompts_of_many_lengths(3), 50, SAMPLED))
        runner.decode()
        yield runner


FAULTS = {
    "creation": lambda runner: torch.tensor([1.0], device=torch.device("cpu")),
    "host": lambda runner: runner._token_R + torch.tensor([1, 2, 3, 4]),
    "index": lambda runner: runner._token_R[[0, 1]],
    "item": lambda runner: runner._token_R[0].item(),
    "bool": lambda runner: bool(runner._token_R[0] > 3),
    "tolist": lambda runner: runner._token_R.tolist(),
    "cpu": lambda runner: runner._token_R.to("cpu"),
    "nonzero": lambda runner: runner._token_R[runner._token_R > 3],
    "early": lambda runner: torch.zeros(4).copy_(runner._token_R, non_blocking=True).tolist(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("where", ["advance", "write", "remove"])
def test_a_planted_wait_is_found(
    running: ModelRunner, monkeypatch: pytest.MonkeyPatch, fault: str, where: str
) -> None:
    real = getattr(KVCache, where)

    def faulty(*args: Any) -> Any:
        FAULTS[fault](running)
        return real(*args)

    monkeypatch.setattr(KVCache, where, faulty)
    running.rows[0].max_new_tokens = 2
    with pytest.raises(AssertionError, match=r"device|Python data|complete"):
        decode_thrice(running)


def decode_thrice(runner: ModelRunner) -> None:
    with FakeDevice():
        for _ in range(3):
            runner.decode()


@torch.inference_mode()
def test_rows_that_end_by_length_take_no_further_step(
    make_runner: Any, model: PaliGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number of tokens is known before the tokens are read."""
    steps = []
    real = PaliGemma.step_logits
    monkeypatch.setattr(
        PaliGemma, "step_logits", lambda *given: (steps.append(given[2].rows), real(*given))[1]
    )
    runner, sequences = make_runner(GREEDY), of_lengths(GREEDY, [2, 4, 4])
    runner.prefill(images(model, 3), sequences)
    while runner.rows:
        runner.decode()
    assert steps == [3, 2, 2]


@torch.inference_mode()
def test_a_group_with_images_joins_without_a_wait_for_its_vision_pass(
    make_runner: Any, model: PaliGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their time is read with their tokens."""
    monkeypatch.setattr(image_cache, "Stopwatch", FakeStopwatch)
    side = model.config.vision.resolution
    images = ImageFeatureCache(model, Preprocessing(), ImageCacheStats())
    runner, sequences = make_runner(GREEDY), of_lengths(GREEDY, [3, 4])
    runner._images = images
    for number, one in enumerate(sequences):
        one.image_key = number
        pixels = np.zeros((side, side, 3), np.uint8)
        one.image = DecodedImage(Item(number, "", ""), side, side, pixels, 0.0)
    with FakeDevice() as device:
        runner.run(Batch("prefill", sequences[:1]))
        runner.run(Batch("decode", sequences[:1]))
        runner.run(Batch("prefill", sequences[1:]))
        assert device.reached < device.marks - 2
        while runner.rows:
            runner.run(Batch("decode", list(runner.rows)))
    assert [one.vision_ms for one in sequences] == [1, 1]


def test_a_decode_step_runs_on_a_device_that_has_no_data(tiny: Path) -> None:
    """On the meta device every copy to Python raises an error."""
    with torch.device("meta"), torch.inference_mode():
        model = PaliGemma(read_config(tiny))
        cache = model.kv_cache(4, fixed_shape=True)
        width = model.config.decoder.width
        model.prefill(torch.zeros(3, PATCHES, width), torch.zeros(3, 4).long(), None, cache)
        token_R = torch.zeros(4, dtype=torch.long)
        for _ in range(3):
            logits_BV = model.decode_step(token_R, cache)
        assert logits_BV.shape == (3, model.config.decoder.vocab_size)
