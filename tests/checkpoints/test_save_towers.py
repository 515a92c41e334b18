"""Two towers and classifiers that are saved here and loaded by transformers, and here again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from torch import nn

from pgcli.checkpoints.save import save_encoder
from pgcli.model.classifier import ImageClassifier
from pgcli.model.config import ClassifierConfig, TextConfig, TwoTowersConfig, VisionConfig
from pgcli.model.two_towers import TwoTowers
from tests.support.towers import load_from

SIZES: Any = {"width": 32, "depth": 2, "mlp_dim": 48, "num_heads": 4}
CLIP: Any = {"norm_eps": 1e-5, "activation": "quick_gelu"}
IMAGE: Any = {"patch_size": 8, "resolution": 32}
TEXT: Any = {"vocab_size": 60, "max_positions": 9}
PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ATOL = 1e-5


def filled(model: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def towers(family: Literal["siglip", "clip"]) -> TwoTowers:
    if family == "siglip":
        vision, text = VisionConfig(**SIZES, **IMAGE), TextConfig(**SIZES | {"width": 24}, **TEXT)
        return filled(TwoTowers(TwoTowersConfig("siglip", vision, text, embedding_dim=32)))
    vision = VisionConfig(
        **SIZES, **IMAGE, **CLIP, class_token=True, patch_bias=False, pre_norm=True
    )
    text = TextConfig(**SIZES, **TEXT, **CLIP, causal=True, eos_token=55)
    return filled(TwoTowers(TwoTowersConfig("clip", vision, text, embedding_dim=20)))


def config_values(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


def load_strictly(kind: Any, folder: Path) -> Any:
    """transformers' model; every tensor that it has is in the checkpoint, and the other way."""
    model, info = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(info.values()), info
    return model.eval()


@pytest.mark.parametrize("family", ["siglip", "clip"])
@torch.inference_mode()
def test_saved_towers_are_loaded_by_transformers(
    tmp_path: Path, family: Literal["siglip", "clip"]
) -> None:
    model = towers(family)
    save_encoder(model, tmp_path, dtype=torch.float32)
    again = load_from(tmp_path)
    assert again.config == model.config
    tokens = torch.randint(3, 50, (3, 9), generator=torch.Generator().manual_seed(2))
    tokens[:, 6:] = 55
    images, texts = model.encode_images(PIXELS), model.encode_texts(tokens)
    assert torch.equal(again.encode_images(PIXELS), images)
    assert torch.equal(again.encode_texts(tokens), texts)
    kind = transformers.SiglipModel if family == "siglip" else transformers.CLIPModel
    found = load_strictly(kind, tmp_path)(input_ids=tokens, pixel_values=PIXELS)
    torch.testing.assert_close(found.image_embeds, images, atol=ATOL, rtol=0)
    torch.testing.assert_close(found.text_embeds, texts, atol=ATOL, rtol=0)
    logits = model.logits(images @ texts.T)
    torch.testing.assert_close(found.logits_per_image, logits, atol=ATOL, rtol=0)


@pytest.mark.parametrize("family", ["vit", "siglip", "clip"])
@torch.inference_mode()
def test_saved_classifiers_are_loaded_by_transformers(
    tmp_path: Path, family: Literal["vit", "siglip", "clip"]
) -> None:
    options: dict[str, Any] = {
        "vit": {"class_token": True, "activation": "gelu", "norm_eps": 1e-12},
        "siglip": {},
        "clip": CLIP | {"class_token": True, "patch_bias": False, "pre_norm": True},
    }[family]
    vision = VisionConfig(**SIZES, **IMAGE, **options, dropout=0.1 if family != "clip" else 0.0)
    model = filled(ImageClassifier(ClassifierConfig(family, vision, ("circle", "star", "cross"))))
    save_encoder(model, tmp_path, dtype=torch.float32)
    again = load_from(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(PIXELS), model(PIXELS))
    kind = {
        "vit": transformers.ViTForImageClassification,
        "siglip": transformers.SiglipForImageClassification,
        "clip": transformers.CLIPForImageClassification,
    }[family]
    found = load_strictly(kind, tmp_path)
    assert found.config.id2label == {0: "circle", 1: "star", 2: "cross"}
    torch.testing.assert_close(found(PIXELS).logits, model(PIXELS), atol=ATOL, rtol=0)


def test_weights_are_stored_in_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    save_encoder(towers("siglip"), tmp_path, dtype=torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert config_values(tmp_path)["dtype"] == "bfloat16"
