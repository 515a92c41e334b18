"""Host and device do not wait for each other: in steps, joins, departures and reads."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine import image_cache
from pgcli.engine import model_runner as module
from pgcli.engine.grammar import Grammar
from pgcli.engine.image_cache import ImageCacheStats, ImageFeatureCache
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.sampler import GREEDY, SamplingParams
from pgcli.engine.scheduler import Batch
from pgcli.engine.sequence import Candidate, Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from tests.support.kernels import FakeDevice, FakeStopwatch
from tests.support.sequences import make_sequences, prompts_of_many_lengths, vocabulary_of
from tests.support.tiny import PATCHES, normal

SAMPLED = SamplingParams(temperature=1, top_p=0.9, top_k=40)


@pytest.fixture(params=["tiny", "tiny2"])
def model(request) -> PaliGemma:
    folder: Path = request.getfixturevalue(request.param)
    return weights.load_paligemma(folder, read_config(folder), dtype=torch.float32)


@pytest.fixture
def make_runner(model, monkeypatch) -> Callable[[SamplingParams], ModelRunner]:
    """Makes runners as on a GPU, with fixed shapes and tokens that are read a step late."""
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
def test_joins_steps_and_departures_wait_for_nothing(make_runner, model, sampling):
    runner, patch_BPD = make_runner(sampling), images(model, 5)
    sequences = of_lengths(sampling, [9, 2, 5, 4, 3])
    sequences[3].row_index = sequences[4].row_index = 2  # two more answers to the third prompt
    with FakeDevice() as device:
        runner.prefill(patch_BPD[:2], sequences[:2])
        runner.decode()
        runner.decode()
        runner.prefill(patch_BPD[2:], sequences[2:])
        while runner.rows:
            runner.decode()
    assert [len(one.tokens) for one in sequences] == [9, 2, 5, 4, 3]
    assert device.copies_to_host > 9


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@torch.inference_mode()
def test_steps_of_a_grammar_wait_for_nothing(make_runner, model, tiny, sampling):
    """Neither do joins, nor departures of rows that the grammar ends."""
    runner, patch_BPD = make_runner(sampling), images(model, 4)
    tokenizer = Tokenizer.from_folder(tiny)
    runner.set_grammar(Grammar(tokenizer, [["cat", "red circle"]], {1}))
    sequences = of_lengths(sampling, [9, 30, 12, 24])
    with FakeDevice() as device:
        runner.prefill(patch_BPD[:2], sequences[:2])
        runner.decode()
        runner.prefill(patch_BPD[2:], sequences[2:])
        while runner.rows:
            runner.decode()
    assert all(one.tokens[-1] == 1 for one in sequences)
    assert max(len(one.tokens) for one in sequences) > 6
    assert device.copies_to_host > 9


@torch.inference_mode()
def test_candidates_are_read_once_the_next_group_is_launched(make_runner, model):
    """Also beside rows that are being generated."""
    runner, patch_BPD = make_runner(GREEDY), images(model, 5)
    generated, *scored = of_lengths(GREEDY, [9, 1, 1, 1, 1])
    for number, one in enumerate(scored):
        one.candidates = (Candidate("a", (300, 301 + number)), Candidate("b", (302,)))
    with FakeDevice() as device:
        runner.prefill(patch_BPD[:1], [generated])
        runner.score(patch_BPD[1:3], scored[:2])
        assert device.reached < device.marks - 2
        assert not any(one.has_ended for one in scored)
        runner.score(patch_BPD[3:], scored[2:])
        assert [one.has_ended for one in scored] == [True, True, False, False]
        while runner.rows:
            runner.decode()
        runner.decode()
    assert all(one.has_ended and len(one.candidate_logprobs) == 2 for one in scored)
    assert len(generated.tokens) == 9


@torch.inference_mode()
def test_a_group_with_images_joins_without_a_wait_for_its_vision_pass(
    make_runner, model, monkeypatch
):
    """Their times are read together with their tokens."""
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
