"""Tests packed rows: an example has the same logits alone, packed and in the engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from examples.demo_model.packing import (
    IGNORE_INDEX,
    TokenizedExample,
    collate,
    pack,
    packed_positions,
    packed_prefix_lm_mask,
)
from pgcli.engine.tokenizer import left_pad
from pgcli.model.attention_masks import AttentionMasks
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from tests.support.random_weights import randomised
from tests.support.tiny import PATCH, RESOLUTION

SLOTS = 64
EXAMPLES = [
    TokenizedExample([2, 50, 51, 108], [60, 61, 62, 63, 1]),
    TokenizedExample([2, 52, 108], [70, 71, 1], 4.0),
    TokenizedExample([2, 53, 54, 55, 108], [80, 1], 4.0),
]


@pytest.fixture
def model() -> PaliGemma:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, 256)
    return randomised(PaliGemma(PaliGemmaConfig(vision, decoder, image_token_id=255)))


def image_features(model: PaliGemma) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    pixels = torch.rand(1, 3, RESOLUTION, RESOLUTION, generator=generator, dtype=torch.float64)
    return model.encode(pixels)


def forward(model: PaliGemma, examples: list[TokenizedExample], *, is_single: bool) -> Tensor:
    """Logits at every text slot of one packed row, in float64."""
    patch_BPD = image_features(model)
    row = collate([pack(examples, slots=SLOTS, max_examples=9)[0]], SLOTS)
    patches = patch_BPD.shape[1]
    mask = packed_prefix_lm_mask(
        row.example_T, row.is_prefix_T, patches=patches, image_attends_to_prompt=is_single
    )
    positions = packed_positions(row.position_T, patches=patches)
    hidden_BTD = model(patch_BPD, row.token_T, positions, AttentionMasks(mask, mask))
    return model.decoder.logits(hidden_BTD)[0]


@torch.no_grad()
def test_a_row_of_one_example_has_the_engines_logits(model: PaliGemma) -> None:
    prompt, answer, _ = EXAMPLES[0]
    packed = forward(model, EXAMPLES[:1], is_single=True)
    patch_BPD = image_features(model)
    token_BT, _ = left_pad([prompt])
    cache = model.kv_cache(1)
    logits = [model.prefill(patch_BPD, token_BT, None, cache)]
    logits += [model.decode_step(torch.tensor([token]), cache) for token in answer[:-1]]
    start = len(prompt) - 1
    engine = torch.cat(logits)
    torch.testing.assert_close(packed[start : start + len(engine)], engine)


@torch.no_grad()
def test_examples_of_a_row_do_not_affect_each_other(model: PaliGemma) -> None:
    alone = forward(model, EXAMPLES[2:], is_single=False)
    together = forward(model, EXAMPLES, is_single=False)
    length = len(EXAMPLES[2].prefix) + len(EXAMPLES[2].suffix) - 1
    row, _ = pack(EXAMPLES, slots=SLOTS, max_examples=9)
    start = row.example_T.index(3)
    torch.testing.assert_close(together[start : start + length], alone[:length])


def test_targets_are_the_answers_alone() -> None:
    row, packed = pack(EXAMPLES, slots=SLOTS, max_examples=9)
    assert packed == (0, 1, 2)
    for number, example in enumerate(EXAMPLES, 1):
        targets = [
            (target, weight)
            for target, at, weight in zip(row.target_T, row.example_T, row.weight_T, strict=True)
            if at == number and target != IGNORE_INDEX
        ]
        assert [target for target, _ in targets] == example.suffix
        assert [weight for _, weight in targets] == [example.weight, *[1.0] * (len(targets) - 1)]


def test_examples_that_do_not_fit_are_skipped() -> None:
    row, packed = pack(EXAMPLES, slots=14, max_examples=9)
    assert (packed, len(row.token_T)) == ((0, 1), 13)
    assert pack(EXAMPLES, slots=12, max_examples=9)[1] == (0,)
    assert pack(EXAMPLES, slots=SLOTS, max_examples=2)[1] == (0, 1)
