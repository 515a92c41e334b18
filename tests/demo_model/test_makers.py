"""What made the built-in model: one test for each maker."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from examples import new_shape
from examples.demo_model.muon import Muon
from examples.demo_model.scenes import TRAINING_SEEDS, lettered_scene, render
from examples.demo_model.task import (
    PackedRow,
    TokenizedExample,
    pack,
    packed_mask,
    packed_positions,
    smoothed_loss,
)
from pgcli.engine.tokenizer import left_pad
from pgcli.model.attention_masks import AttentionMasks
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.optimizer import make_optimizer
from tests.support.random_weights import randomised
from tests.support.tiny import PATCH, RESOLUTION


def test_the_word_is_drawn_where_it_is_said_to_be() -> None:
    """Its rectangle has pixels of its colour in every letter."""
    for scene in map(lettered_scene, TRAINING_SEEDS[:20]):
        (word,) = scene.words
        pixels = numpy.asarray(render(scene, 400), int)
        scale = pixels.shape[1] / scene.width
        is_ink = (abs(pixels - numpy.array(word.rgb)) < 60).all(-1)
        rows = is_ink[round(word.top * scale) : round(word.y * scale)]
        for left, right in pairwise(word.edges):
            assert rows[:, round(left * scale) : round(right * scale) + 1].any(), word


def test_muon_updates_matrices_as_torch_does_and_the_rest_by_adamw() -> None:
    torch_muon = pytest.importorskip("torch.optim", reason="torch 2.9 has Muon").Muon
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 8))
    theirs, adamw = copy.deepcopy(ours), copy.deepcopy(ours)
    options: Any = {"weight_decay": 0.1, "betas": (0.9, 0.98)}
    optimizer = make_optimizer(ours, **options, kind=Muon)
    other = make_optimizer(adamw, **options)
    matrices = [theirs[0].weight, theirs[1].weight]
    torchs = torch_muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for group in (*optimizer.param_groups, *other.param_groups):
        group["lr"] = 0.02
    for _ in range(4):
        x = torch.randn(5, 24)
        for model in (ours, theirs, adamw):
            model.zero_grad()
        ours(x).square().mean().backward()
        for model in (theirs, adamw):
            for one, own in zip(model.parameters(), ours.parameters(), strict=True):
                one.grad = own.grad.clone()  # type: ignore[union-attr]
        for each in (optimizer, torchs, other):
            each.step()
    for layer in range(2):
        moved = (ours[layer].weight - theirs[layer].weight).norm() / theirs[layer].weight.norm()
        assert moved < 0.02  # torch's iterations are in bfloat16
        assert torch.equal(ours[layer].bias, adamw[layer].bias)
        assert not torch.allclose(ours[layer].weight, adamw[layer].weight, rtol=0.05)


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_rows_are_about_hearts_and_about_known_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_shape.main(tmp_path, 2)
    train = rows(tmp_path / "train.jsonl")
    known = [row for row in train if row["image"].startswith("rehearsed/")]
    assert len({row["image"] for row in known}) == 8
    assert len(known) == 8 * new_shape.REHEARSED_ROWS
    assert len(train) > len(known) + 20
    assert any("heart" in row.get("suffix", "") for row in train)
    assert not any("heart" in row.get("suffix", "") for row in known)
    for name in ("train", "questions", "known"):
        assert all((tmp_path / row["image"]).is_file() for row in rows(tmp_path / f"{name}.jsonl"))


EXAMPLES: list[TokenizedExample] = [
    ([2, 50, 51, 108], [60, 61, 62, 63, 1], 1),
    ([2, 52, 108], [70, 71, 1], 4),
    ([2, 53, 54, 55, 108], [80, 1], 4),
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
    row = PackedRow.of([pack(examples, 9)])
    patches = patch_BPD.shape[1]
    mask = packed_mask(row, patches=patches, image_attends_to_prompt=is_single)
    positions = packed_positions(row, patches=patches)
    hidden_BTD = model(patch_BPD, row.token_BT, positions, AttentionMasks(mask, mask))
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
    length = len(EXAMPLES[2][0]) + len(EXAMPLES[2][1]) - 1
    row = PackedRow.of([pack(EXAMPLES, 9)])
    start = row.example_BT[0].tolist().index(3)
    torch.testing.assert_close(together[start : start + length], alone[:length])


def test_near_location_has_a_lower_loss_than_a_far_one() -> None:
    logits = torch.zeros(3, 1200)
    logits[0, 500], logits[1, 501], logits[2, 700] = 9.0, 9.0, 9.0
    target, weight = torch.tensor([500]), torch.ones(1)
    exact, near, far = (
        smoothed_loss(row[None], target, weight, range(100, 1124)) for row in logits
    )
    assert exact < near < far
    logits, target = torch.randn(5, 1200), torch.tensor([3, 50, 99, 1150, 0])
    loss = smoothed_loss(logits, target, torch.ones(5), range(100, 1124))
    assert loss.item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, target).item(), rel=1e-5
    )
