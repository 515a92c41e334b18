"""The image-feature cache encodes each image once for all its prompts, within a size bound."""

from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch

from pgcli.checkpoints.find import Checkpoint
from pgcli.engine import engine as engines
from pgcli.engine import image_cache
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.image_cache import ImageCacheStats, ImageFeatureCache
from pgcli.engine.loader import open_engine
from pgcli.engine.sequence import Sequence
from pgcli.model import transfer
from pgcli.records import Answer, DecodedImage, Item
from pgcli.tasks import Question
from tests.support.tiny import PATCHES, RESOLUTION

PROMPTS = ("a", "is it red?", "how many red circles are there?")
BYTES = PATCHES * 48 * 4  # of one image's features in the tiny model
QUESTION = Question("ask", None, 4)


@pytest.fixture
def engine(tiny) -> InferenceEngine:
    return open_engine(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=4)


def images(count: int) -> list[DecodedImage]:
    noise = np.random.default_rng(7).integers(0, 256, (count, RESOLUTION, RESOLUTION, 3), np.uint8)
    return [
        DecodedImage(Item(n, str(n), str(n), prompts=PROMPTS), RESOLUTION, RESOLUTION, square, 0.0)
        for n, square in enumerate(noise)
    ]


def asked(engine: InferenceEngine, count: int = 6) -> list[tuple[int, Answer]]:
    stream = ((3 * n, image) for n, image in enumerate(images(count)))
    return sorted(engine.ask(stream, QUESTION))


class Watched(ImageFeatureCache):
    """Records the most bytes that it has held, and the last cache created."""

    def __init__(self, *given: object, **more: object):
        super().__init__(*given, **more)
        self.most = 0
        Watched.last = self

    def _keep(self, *given: object) -> None:
        super()._keep(*given)
        self.most = max(self.most, sum(patch_PD.nbytes for patch_PD in self._features.values()))


@pytest.mark.parametrize("room", [0, 1, 2])
def test_an_evicted_image_is_encoded_again_and_answers_the_same(engine, monkeypatch, room):
    monkeypatch.setattr(engines, "ImageFeatureCache", Watched)
    plain = asked(engine)
    assert (engine.image_stats.prompts, engine.image_stats.misses, engine.image_stats.hits) == (
        18,
        6,
        12,
    )
    assert Watched.last.most > room * BYTES
    monkeypatch.setattr(
        engines,
        "ImageFeatureCache",
        lambda *given: Watched(*given, max_bytes=(room + 1) * BYTES - 1),
    )
    engine = InferenceEngine(
        *(engine.model, engine.tokenizer, engine.preprocessing),
        label="tiny",
        batch_size=engine.batch_size,
    )
    found = asked(engine)
    assert [(row.answer, row.tokens) for _, row in found] == [
        (row.answer, row.tokens) for _, row in plain
    ]
    assert Watched.last.most == room * BYTES
    assert 6 < engine.image_stats.misses <= 18
    assert engine.image_stats.prompts == 18


@pytest.mark.parametrize("room", [0, 10**9], ids=["evicted", "cached"])
def test_staged_images_are_answered_as_others(engine, monkeypatch, room):
    """As for a GPU, including images that are encoded again after their features were evicted."""
    made = partial(Watched, max_bytes=room)
    monkeypatch.setattr(engines, "ImageFeatureCache", made)
    expected = asked(engine)
    monkeypatch.setattr(image_cache, "reads_pinned", lambda device: True)
    engine._idle_runner, engine.image_stats.misses = None, 0
    copied = mock.Mock(side_effect=image_cache.empty_on_host)
    monkeypatch.setattr(image_cache, "empty_on_host", copied)
    found = asked(engine)
    assert [(row.answer, row.logprob) for _, row in found] == [
        (row.answer, row.logprob) for _, row in expected
    ]
    assert copied.call_count == engine.image_stats.misses
    assert (copied.call_count > 6) == (not room)
    assert not Watched.last._staged, "images are held after all answers"


def request(number: int, image: DecodedImage, shares: int) -> Sequence:
    return Sequence(
        number, "a", (2, 108), 4, image=image, image_key=image.item.index, image_uses=shares
    )


@pytest.fixture
def features(engine) -> ImageFeatureCache:
    return ImageFeatureCache(
        engine.model, engine.preprocessing, ImageCacheStats(), max_bytes=2 * BYTES
    )


def encoded(features: ImageFeatureCache, group: list[Sequence]) -> int:
    """How many images are encoded for a group that is then prefilled."""
    before = features._stats.misses
    with torch.inference_mode():
        features.get(group)
    features.release(group)
    return features._stats.misses - before


def test_features_can_be_requested_again_before_release(features):
    """OOM may follow the encoding, even for an image's only or last prompt."""
    alone, twice = (request(n, image, n + 1) for n, image in enumerate(images(2)))
    group = [alone, twice, twice]
    with torch.inference_mode():
        first, again = features.get(group), features.get(group)
    assert torch.equal(first, again)
    features.release(group)
    assert not features._counts
    features.retain([twice])
    assert encoded(features, [twice]) == 1
    assert not features._counts
    assert not features._features


@pytest.mark.parametrize(
    "problem",
    ["CUDA error: out of memory", "CUDA error: operation not supported", "no accelerator"],
)
def test_images_wait_in_other_memory_if_none_can_be_pinned(monkeypatch, problem):
    """As on WSL2 and in small containers; tokens are read back into such memory too."""
    real = torch.empty

    def empty(*arguments, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError(problem)
        return real(*arguments, **options)

    monkeypatch.setattr(torch, "empty", empty)
    host = transfer.empty_on_host((2, 3), torch.int64, pinned=True)
    assert (host.shape, host.dtype, host.is_pinned()) == ((2, 3), torch.int64, False)
    monkeypatch.setattr(transfer, "reads_pinned", lambda device: True)
    values = torch.arange(6).view(2, 3).T
    assert torch.equal(transfer.to_device(values, torch.device("cpu")), values)
