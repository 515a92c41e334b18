"""Two towers and classifiers compared with transformers, on random weights of its layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from pgcli.checkpoints.families import family_of
from pgcli.errors import InvalidCheckpoint
from pgcli.model.classifier import ImageClassifier
from pgcli.model.two_towers import TwoTowers
from tests.support.towers import BASE, BASE_IMAGE, LABELS, TINY, TINY_IMAGE, load_from, spread

TEXTS = {"vocab_size": 60, "max_position_embeddings": 9}
ATOL = 1e-5


def two_towers(kind: str, sizes: dict[str, int], image: dict[str, int], **text: Any) -> Any:
    torch.manual_seed(0)
    configs = {"vision_config": sizes | image, "text_config": sizes | TEXTS | text}
    if kind == "siglip":
        return spread(transformers.SiglipModel(transformers.SiglipConfig(**configs)))
    config = transformers.CLIPConfig(**configs, projection_dim=40)
    return spread(transformers.CLIPModel(config))


def loaded(reference: Any, folder: Path) -> TwoTowers:
    reference.save_pretrained(folder)
    return load_from(folder)


def loaded_classifier(reference: Any, folder: Path) -> ImageClassifier:
    reference.save_pretrained(folder)
    return load_from(folder)


def pixels(count: int, image: dict[str, int]) -> Tensor:
    return torch.randn(count, 3, image["image_size"], image["image_size"])


def texts(count: int, eos: int | None = None) -> Tensor:
    """Token ids of different lengths, padded on the right, after an end token for CLIP."""
    tokens = torch.randint(3, 50, (count, TEXTS["max_position_embeddings"]))
    for row in range(count):
        length = 2 + row % 6
        tokens[row, length:] = 1
        if eos is not None:
            tokens[row, length:] = eos
    return tokens


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)


@torch.inference_mode()
def compare(reference: Any, model: TwoTowers, image: dict[str, int], eos: int | None) -> None:
    """Embeddings and logits of both towers, in batches of several sizes."""
    images, tokens = pixels(5, image), texts(5, eos)
    out = reference(input_ids=tokens, pixel_values=images)
    for size in (1, 2, 5):
        found_images = torch.cat([model.encode_images(part) for part in images.split(size)])
        found_texts = torch.cat([model.encode_texts(part) for part in tokens.split(size)])
        assert_close(found_images, out.image_embeds)
        assert_close(found_texts, out.text_embeds)
        # logits are up to exp(2) times a product of vectors
        logits = model.logits(found_images @ found_texts.T)
        torch.testing.assert_close(logits, out.logits_per_image, atol=8 * ATOL, rtol=0)
    assert out.image_embeds.std(dim=0).mean() > 1e-3, "all embeddings are alike"


@pytest.mark.parametrize("kind", ["siglip", "clip"])
def test_embeddings_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    eos = 55 if kind == "clip" else None
    reference = two_towers(kind, TINY, TINY_IMAGE, **({"eos_token_id": eos} if eos else {}))
    compare(reference, loaded(reference, tmp_path), TINY_IMAGE, eos)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["siglip", "clip"])
def test_embeddings_of_base_size_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    reference = two_towers(kind, BASE, BASE_IMAGE)
    compare(reference, loaded(reference, tmp_path), BASE_IMAGE, 59 if kind == "clip" else None)


def test_clip_of_an_early_configuration_pools_the_highest_token(tmp_path: Path) -> None:
    reference = two_towers("clip", TINY, TINY_IMAGE, eos_token_id=2)
    model = loaded(reference, tmp_path)
    assert model.config.text is not None
    assert model.config.text.eos_token is None
    compare(reference, model, TINY_IMAGE, 59)


def test_exact_gelu_of_clip_is_followed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = TINY | {"hidden_act": "gelu"}
    reference = two_towers("clip", sizes, TINY_IMAGE, eos_token_id=55)
    compare(reference, loaded(reference, tmp_path), TINY_IMAGE, 55)


def test_vision_tower_on_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.SiglipVisionConfig(**TINY, **TINY_IMAGE)
    reference = spread(transformers.SiglipVisionModel(config))
    model, images = loaded(reference, tmp_path), pixels(3, TINY_IMAGE)
    with torch.inference_mode():
        expected = nn.functional.normalize(reference(images).pooler_output, dim=-1)
        assert_close(model.encode_images(images), expected)
        with pytest.raises(ValueError, match="no text tower"):
            model.encode_texts(texts(1))


# --- classifiers


def classifier(kind: str, sizes: dict[str, int], image: dict[str, int]) -> Any:
    torch.manual_seed(0)
    if kind == "vit":
        config = transformers.ViTConfig(**sizes, **image, **LABELS)
        return spread(transformers.ViTForImageClassification(config))
    configs = {"vision_config": sizes | image, "text_config": sizes | TEXTS, **LABELS}
    if kind == "siglip":
        config = transformers.SiglipConfig(**configs)
        return spread(transformers.SiglipForImageClassification(config))
    return spread(transformers.CLIPForImageClassification(transformers.CLIPConfig(**configs)))


@pytest.mark.parametrize("kind", ["vit", "siglip", "clip"])
def test_classes_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    reference = classifier(kind, TINY, TINY_IMAGE)
    model, images = loaded_classifier(reference, tmp_path), pixels(5, TINY_IMAGE)
    assert model.config.labels == ("circle", "square", "star")
    with torch.inference_mode():
        expected = reference(images).logits
        for size in (1, 2, 5):
            assert_close(torch.cat([model(part) for part in images.split(size)]), expected)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["vit", "siglip", "clip"])
def test_classes_of_base_size_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    reference = classifier(kind, BASE, BASE_IMAGE)
    model, images = loaded_classifier(reference, tmp_path), pixels(2, BASE_IMAGE)
    with torch.inference_mode():
        assert_close(model(images), reference(images).logits)


def test_both_generations_of_vit_names_are_read(tmp_path: Path) -> None:
    """transformers 5 has other names in memory than in the files that it writes."""
    from safetensors.torch import save_file

    reference = classifier("vit", TINY, TINY_IMAGE)
    old = loaded_classifier(reference, tmp_path)
    assert any(name.startswith("vit.layers.") for name in reference.state_dict())
    save_file(reference.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    new = loaded_in_place(tmp_path)
    for one, other in zip(old.parameters(), new.parameters(), strict=True):
        assert torch.equal(one, other)


def loaded_in_place(folder: Path) -> ImageClassifier:
    return load_from(folder)


# --- refusals


def test_missing_tensor_has_the_name_of_the_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    reference = two_towers("siglip", TINY, TINY_IMAGE)
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["vision_model.head.probe"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"vision_model\.head\.probe is missing"):
        load_from(tmp_path)


def read(values: dict[str, Any]) -> Any:
    family = family_of(values)
    assert family is not None
    return family.read(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "clip", "vision_config": {"hidden_act": "relu"}}, "vision_config.hidden_a"),
        ({"model_type": "clip", "vision_config": {"patch_size": 233}}, "vision_config.patch_size"),
        ({"model_type": "siglip", "text_config": {"hidden_size": 3}}, "text_config.num_attention"),
        (
            {"model_type": "siglip", "text_config": {"rope_scaling": 3}},
            "text_config.rope_scaling = 3",
        ),
        ({"model_type": "siglip", "text_config": {"projection_size": 5}}, "embeddings of 5"),
    ],
)
def test_unsupported_settings_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(values)


@pytest.mark.parametrize("id2label", [{"0": "a", "2": "b"}, {"x": "a"}, {"0": 1}, ["a"]])
def test_labels_are_complete(id2label: Any) -> None:
    with pytest.raises(ValueError, match="id2label does not name"):
        read({"model_type": "vit", "id2label": id2label})
