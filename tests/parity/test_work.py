"""How much a run computes: an image once, a token a row and step, and the memory of a slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.loader import load
from pgcli.model.kv_cache import BUCKET
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from pgcli.tasks import Question
from tests.support.caches import unit_cache
from tests.support.random_weights import normal
from tests.support.sequences import run_together, vocabulary_of
from tests.support.tiny import PATCHES, RESOLUTION

PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 304, 108], [2, 108]]


@pytest.fixture(scope="module")
def model(tiny: Path) -> PaliGemma:
    return weights.load(tiny, read_config(tiny), dtype=torch.float64)


@pytest.fixture
def patch_BPD(model: PaliGemma) -> Tensor:
    return model.encode(normal(len(PROMPTS), 3, RESOLUTION, RESOLUTION).clamp(-1, 1))


@pytest.fixture
def hidden(model: PaliGemma) -> Iterator[list[Tensor]]:
    """The outputs of the decoder's first layer, one tensor per forward pass."""
    outputs: list[Tensor] = []
    hook = model.decoder.layers[0].register_forward_hook(lambda *args: outputs.append(args[-1]))
    yield outputs
    hook.remove()


# Attention masks


# Positions and slots


def test_more_rows_than_the_maximum_are_refused() -> None:
    cache = unit_cache(4)
    cache.insert(3, 2)
    with pytest.raises(ValueError, match="4 rows; 5"):
        cache.insert(2, 2)


@pytest.mark.parametrize(
    ("depth", "kv_heads", "head_dim", "kib"),
    [(18, 1, 256, 18), (18, 8, 256, 144), (26, 4, 256, 104), (42, 8, 256, 336), (46, 16, 128, 368)],
)
def test_a_slot_costs_two_numbers_per_layer_key_head_and_dimension(
    depth: int, kv_heads: int, head_dim: int, kib: int
) -> None:
    """In bfloat16: 18 KiB for the first generation, an eighth of what eight heads would take."""
    sizes = {"depth": depth, "num_kv_heads": kv_heads, "head_dim": head_dim}
    cache = unit_cache(4, dtype=torch.bfloat16, device="meta", **sizes)
    cache.reserve(4, BUCKET)
    assert cache.nbytes == 4 * BUCKET * kib * 1024
    assert cache.nbytes == 2 * depth * kv_heads * head_dim * 2 * 4 * BUCKET


# Amount of work


def test_decode_step_processes_one_token_per_row(
    model: PaliGemma, patch_BPD: Tensor, hidden: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill computes logits for the last position only: a row of logits is one mebibyte."""
    scored, logits = [], model.decoder.logits
    monkeypatch.setattr(model.decoder, "logits", lambda x: scored.append(x.shape[:-1]) or logits(x))
    endless = vocabulary_of(model, image_token=model.config.image_token_id)
    run_together(model, patch_BPD, PROMPTS, endless, 4)
    assert [tuple(x.shape[:2]) for x in hidden] == [(3, PATCHES + 6), (3, 1), (3, 1), (3, 1)]
    assert scored == [(3,)] * 4


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_each_image_is_encoded_once_for_all_its_prompts(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    engine = load(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=batch_size)
    encoded, forward = [], engine.model.vision.forward

    def watched(pixels_BCRR: Tensor) -> Tensor:
        encoded.extend(pixels_BCRR[:, 0, 0, 0].tolist())
        return forward(pixels_BCRR)

    monkeypatch.setattr(engine.model.vision, "forward", watched)
    prompts = [("caption en", "is it red?", "how many?"), ("ocr",), ("a", "b", "c", "d e f")]
    answers = sorted(engine.ask(stream(prompts), Question("ask", None, 6)))
    assert [row_index for row_index, _ in answers] == list(range(8))
    assert [answer.prompt for _, answer in answers] == [p for several in prompts for p in several]
    shades = sorted(2 * n * 50 / 255 - 1 for n in range(3))
    assert sorted(encoded) == pytest.approx(shades, abs=1e-6)


def stream(prompts: list[tuple[str, ...]]) -> list[tuple[int, DecodedImage]]:
    """Grey images, each a shade lighter, with the indices of their first rows."""
    images, row_index = [], 0
    for number, several in enumerate(prompts):
        item = Item(number, str(number), str(number), prompts=several)
        square = torch.full((RESOLUTION, RESOLUTION, 3), number * 50, dtype=torch.uint8).numpy()
        images.append((row_index, DecodedImage(item, RESOLUTION, RESOLUTION, square, load_ms=0.0)))
        row_index += len(several)
    return images
