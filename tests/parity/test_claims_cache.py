"""Published claims about prefix-LM attention and the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import load
from pgcli.engine.tokenizer import left_pad
from pgcli.model.kv_cache import BUCKET, KVCache
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from pgcli.tasks import Question
from tests.support.caches import unit_cache
from tests.support.prefix_masks import make_masks
from tests.support.random_weights import normal
from tests.support.sequences import run_together, vocabulary_of
from tests.support.tiny import PATCHES, RESOLUTION

PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 304, 108], [2, 108]]
EXACT = {"rtol": 0, "atol": 1e-10}


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


def prefill(
    model: PaliGemma, patch_BPD: Tensor, prompts: list[list[int]]
) -> tuple[Tensor, KVCache]:
    token_BT, is_real_BT = left_pad(prompts)
    cache = model.kv_cache(len(prompts))
    return model.prefill(patch_BPD, token_BT, is_real_BT, cache), cache


# Attention masks


@pytest.mark.parametrize("prompts", [PROMPTS, [[2, 300, 108]] * 3], ids=["ragged", "equal"])
def test_image_tokens_attend_to_the_whole_prompt(
    model: PaliGemma, patch_BPD: Tensor, hidden: list[Tensor], prompts: list[list[int]]
) -> None:
    """Attention within the prefix is bidirectional: image tokens attend to the prompt."""
    prefill(model, patch_BPD, prompts)
    prefill(model, patch_BPD, [prompts[0], [*prompts[1][:-1], 400], prompts[2]])
    changed = (hidden[0] != hidden[1]).any(-1)
    assert changed[1, :PATCHES].all()
    assert not changed[[0, 2]].any(), "another row's prompt has an effect"


def test_prompt_and_answer_tokens_attend_to_every_patch(
    model: PaliGemma, patch_BPD: Tensor
) -> None:
    def logits(patch_BPD: Tensor) -> Tensor:
        first, cache = prefill(model, patch_BPD, PROMPTS[1:2])
        steps = [model.decode_step(torch.tensor([token]), cache) for token in (400, 401)]
        return torch.stack([first, *steps])[..., 1:]  # the padding's own embedding is zero

    before = logits(patch_BPD[:1])
    for patch in range(PATCHES):
        other = patch_BPD[:1].clone()
        other[0, patch] += 1
        assert (logits(other) != before).all(-1).all(), patch


@pytest.mark.parametrize("position", [0, 2, 4])
def test_answer_tokens_attend_to_earlier_tokens_only(
    model: PaliGemma, patch_BPD: Tensor, position: int
) -> None:
    """Under training's mask, changing one token of the answer changes nothing before it."""
    answer_BT = torch.randint(300, 700, (3, 5), generator=torch.Generator().manual_seed(0))
    other_BT = answer_BT.clone()
    other_BT[:, position] += 1
    before, after = (teacher_forced(model, patch_BPD, x) for x in (answer_BT, other_BT))
    changed = (before != after).any(-1)
    assert not changed[:, : -5 + position].any()
    assert changed[:, -5 + position :].all()


def teacher_forced(model: PaliGemma, patch_BPD: Tensor, answer_BT: Tensor) -> Tensor:
    """Hidden states of prompts and a given answer, (B, T, D), in one pass without a cache."""
    token_BT, is_real_BT = left_pad(PROMPTS)
    assert is_real_BT is not None
    image_BP = is_real_BT.new_ones(patch_BPD.shape[:2])
    answered_BT = torch.ones_like(answer_BT, dtype=torch.bool)
    is_real_BS = torch.cat([image_BP, is_real_BT, answered_BT], dim=1)
    is_prefix_BS = torch.cat([image_BP, is_real_BT, ~answered_BT], dim=1)
    masks = make_masks(is_real_BS, is_prefix_BS, is_real_BS.cumsum(1), None)
    everything_BT = torch.cat([token_BT, answer_BT], dim=1)
    return model(patch_BPD, everything_BT, is_real_BS.cumsum(1), masks)


def test_prefill_token_by_token_differs_from_one_pass(model: PaliGemma, patch_BPD: Tensor) -> None:
    """Attention within the prefix is bidirectional; under a causal mask both ways agree."""
    prompt = PROMPTS[1]
    at_once, _ = prefill(model, patch_BPD[:1], [prompt])
    by_token, cache = prefill(model, patch_BPD[:1], [prompt[:1]])
    for token in prompt[1:]:
        by_token = model.decode_step(torch.tensor([token]), cache)
    assert (at_once - by_token).abs().max() > 1e-3

    token_BT = torch.tensor([prompt])
    x_BSD = torch.cat([patch_BPD[:1], model.decoder.embed(token_BT)], dim=1)
    cache = model.kv_cache(1)
    first_BD, *later = x_BSD.unbind(1)
    model.decoder(first_BD[:, None], *cache.insert(1, 1), cache)
    for slot_BD in later:
        last = model.decoder(slot_BD[:, None], *cache.append(), cache)
    is_real_BS = torch.ones(x_BSD.shape[:2], dtype=torch.bool)
    causal = make_masks(is_real_BS, ~is_real_BS, is_real_BS.cumsum(1), None)
    whole = model(patch_BPD[:1], token_BT, is_real_BS.cumsum(1), causal)
    torch.testing.assert_close(last[:, 0], whole[:, -1], **EXACT)


def test_padding_tokens_change_no_bit_of_the_logits(
    model: PaliGemma, patch_BPD: Tensor, hidden: list[Tensor]
) -> None:
    """Padding has weight zero; padded queries attend to real slots, so no value is NaN."""
    token_BT, is_real_BT = left_pad([[2] + [300] * 30 + [108], [108], [2, 108]])
    assert is_real_BT is not None
    found = []
    for junk in (0, 1, 700):
        cache = model.kv_cache(3)
        filled_BT = torch.where(is_real_BT, token_BT, junk)
        found.append(model.prefill(patch_BPD, filled_BT, is_real_BT, cache))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert all(bool(x.isfinite().all()) for x in hidden)


# Positions and slots


@pytest.mark.parametrize("padding", [0, 1, 5])
def test_positions_count_real_slots_only(padding: int) -> None:
    """Each row counts from 1, and a decode step takes the next position of its row."""
    cache = unit_cache(3)
    is_real_BL = torch.ones(3, 6 + padding, dtype=torch.bool)
    for row, gone in enumerate([0, 2, 4]):
        is_real_BL[row, 2 : 2 + padding + gone] = False
    position_BL, _ = cache.insert(3, 6 + padding, is_real_BL)
    assert [position_BL[n][is_real_BL[n]].tolist() for n in range(3)] == [
        *([1, 2, 3, 4, 5, 6], [1, 2, 3, 4], [1, 2]),
    ]
    assert cache.append()[0][:3].tolist() == [[7], [5], [3]]


def test_mask_allows_real_slots_and_is_none_if_all_are_real() -> None:
    cache = unit_cache(2)
    assert cache.insert(2, 4)[1] == (None, None)
    assert cache.append()[1] == (None, None)
    cache = unit_cache(2)
    is_real_BL = torch.tensor([[True] * 4, [True, True, False, True]])
    _, (mask, _) = cache.insert(2, 4, is_real_BL)
    assert mask.tolist() == [[[[True] * 4]], [[[True, True, False, True]]]]
    _, (mask, _) = cache.append()
    assert mask.tolist() == [[[[True] * 5]], [[[True, True, False, True, True]]]]


def test_each_layer_stores_its_own_keys_and_values() -> None:
    cache = unit_cache(2)
    written = []
    for new in (3, 1, 1):
        cache.append() if written else cache.insert(2, 3)
        written.append([torch.randn(2, 2, 2, new, 4) for _ in range(3)])
        for layer, (key, value) in enumerate(written[-1]):
            kept = cache.write(layer, key, value)
            for number, found in enumerate(kept):
                assert found.shape == (2, 2, cache.lengths[0], 4)
                before = [one_pass[layer][number] for one_pass in written]
                assert torch.equal(found, torch.cat(before, dim=2))
    assert cache.lengths == [5, 5]


def test_keys_and_values_are_read_without_a_copy() -> None:
    cache = unit_cache(2)
    cache.insert(2, 2)
    first, _ = cache.write(1, torch.ones(2, 2, 2, 4), torch.ones(2, 2, 2, 4))
    cache.append()
    again, _ = cache.write(1, torch.ones(2, 2, 1, 4), torch.ones(2, 2, 1, 4))
    assert first.data_ptr() == again.data_ptr()


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


def test_answers_do_not_depend_on_shared_image_features(tiny: Path) -> None:
    engine = load(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=2)
    prompts = ("caption en", "is it red?", "how many?")
    shared = texts(engine, stream([prompts]))
    alone = [texts(engine, stream([(prompt,)]))[0] for prompt in prompts]
    assert shared == alone


def texts(engine: InferenceEngine, images: list[tuple[int, DecodedImage]]) -> list[str | None]:
    return [answer.answer for _, answer in sorted(engine.ask(images, Question("ask", None, 6)))]
