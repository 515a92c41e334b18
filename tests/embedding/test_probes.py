"""A linear layer on any vision tower is a classifier that transformers reads too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_description
from pgcli.checkpoints.save import save_encoder
from pgcli.embedding.loader import load
from pgcli.images import ImageLimits, decode
from pgcli.images.in_memory import encode_image
from pgcli.records import Item
from pgcli.training.encoders.new_models import classifier_of
from tests.support import tiny, towers

LABELS = ("cat", "dog", "bird")


def tower_into(folder: Path, kind: str) -> Path:
    return (
        tiny.checkpoint_into(folder)
        if kind == "paligemma"
        else towers.checkpoint_into(folder, kind)
    )


@pytest.mark.parametrize("kind", ["siglip", "clip", "siglip_vision_model", "vit", "paligemma"])
def test_probe_of_any_tower_is_read_by_both_programs(tmp_path: Path, kind: str) -> None:
    folder, out = tower_into(tmp_path / "tower", kind), tmp_path / "probe"
    description = read_description(folder)
    probe = classifier_of(folder, description, LABELS, torch.device("cpu"))
    with torch.no_grad():
        # the tiny PaliGemma's weights amplify rounding; larger weights here would do so too
        probe.classifier.weight.normal_(std=0.05)
        probe.classifier.bias.normal_()
    out.mkdir()
    save_encoder(probe, out, dtype=torch.float32)
    side = description.vision.resolution
    processor = towers.image_processor(kind, side)
    processor.save_pretrained(out)
    engine = load(Checkpoint("probe", out), device="cpu")
    assert (engine.kind, engine.labels) == ("classifier", LABELS)
    noise = np.random.default_rng(0)
    images = [Image.fromarray(noise.integers(0, 256, (50, 70, 3), np.uint8)) for _ in range(3)]
    stream = [
        (row, decode(Item(row, "", "", data=encode_image(image)), engine.spec, ImageLimits()))
        for row, image in enumerate(images)
    ]
    found = np.stack([one.vector for _, one in engine.encode(stream) if one.vector is not None])
    reference = transformers.AutoModelForImageClassification.from_pretrained(out).eval()
    with torch.inference_mode():
        expected = reference(processor(images, return_tensors="pt")["pixel_values"]).logits
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.std(axis=0).min() > 1e-3
    assert [reference.config.id2label[number] for number in range(3)] == [*LABELS]
