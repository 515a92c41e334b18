"""Dropout of the towers: in training only, with the mean kept."""

from __future__ import annotations

from dataclasses import replace

import torch

from pgcli.model.classifier import ImageClassifier
from pgcli.model.config import ClassifierConfig, VisionConfig
from pgcli.model.siglip import SiglipAttention
from tests.support.random_weights import normal, randomised

VIT = VisionConfig(
    width=24,
    depth=2,
    mlp_dim=40,
    num_heads=4,
    patch_size=4,
    resolution=12,
    class_token=True,
    activation="gelu",
)


def classifier(vision: VisionConfig = VIT) -> ImageClassifier:
    return randomised(ImageClassifier(ClassifierConfig("vit", vision, ("a", "b", "c"))))


def test_dropout_is_for_training_only() -> None:
    model, pixels = classifier(replace(VIT, dropout=0.5)), normal(1, 3, 12, 12)
    model.eval()
    assert torch.equal(model(pixels), model(pixels))
    assert torch.equal(model(pixels), classifier()(pixels))
    model.train()
    assert not torch.equal(model(pixels), model(pixels))


def test_attention_dropout_drops_weights_in_training_and_keeps_their_mean() -> None:
    plain = randomised(SiglipAttention(VIT))
    attention = randomised(SiglipAttention(replace(VIT, attention_dropout=0.5)))
    x_BPD = normal(1, 9, 24)
    assert torch.equal(attention.eval()(x_BPD), plain(x_BPD))
    attention.train()
    outputs = attention(x_BPD.expand(20_000, -1, -1))
    assert not torch.equal(outputs[0], outputs[1])
    deviation = outputs.std(0) / len(outputs) ** 0.5
    assert ((outputs.mean(0) - plain(x_BPD)[0]).abs() < 5 * deviation + 1e-9).all()
