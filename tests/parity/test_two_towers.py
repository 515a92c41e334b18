"""Two towers and classifiers, compared with transformers on random weights in its layouts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pgcli.checkpoints.families import family_of
from pgcli.checkpoints.save import save_encoder
from pgcli.errors import InvalidCheckpoint
from pgcli.model.siglip import TwoTowers
from tests.support import towers
from tests.support.towers import BASE, BASE_IMAGE, TINY, TINY_IMAGE, load_from

ATOL = 1e-5


def loaded(reference: Any, folder: Path) -> Any:
    reference.save_pretrained(folder)
    return load_from(folder)


def pixels(count: int, image: dict[str, int]) -> Tensor:
    return torch.randn(count, 3, image["image_size"], image["image_size"])


def texts(count: int, eos: int | None = None) -> Tensor:
    """Token ids of different lengths, padded on the right, after an end token for CLIP."""
    tokens = torch.randint(3, 50, (count, towers.TEXT_LENGTH))
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
def test_tower_embeddings_equal_transformers(tmp_path, kind):
    eos = 55 if kind == "clip" else None
    reference = towers.reference(kind, **({"eos_token_id": eos} if eos else {}))
    compare(reference, loaded(reference, tmp_path), TINY_IMAGE, eos)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["siglip", "clip"])
def test_base_size_embeddings_equal_transformers(tmp_path, kind):
    reference = towers.reference(kind, sizes=BASE, image=BASE_IMAGE)
    compare(reference, loaded(reference, tmp_path), BASE_IMAGE, 59 if kind == "clip" else None)


def test_clip_of_an_early_configuration_pools_the_highest_token(tmp_path):
    reference = towers.reference("clip", eos_token_id=2)
    model = loaded(reference, tmp_path)
    assert model.config.text.eos_token is None
    compare(reference, model, TINY_IMAGE, 59)


def test_exact_gelu_of_clip_is_followed(tmp_path):
    sizes = TINY | {"hidden_act": "gelu"}
    reference = towers.reference("clip", sizes=sizes, eos_token_id=55)
    compare(reference, loaded(reference, tmp_path), TINY_IMAGE, 55)


def test_both_generations_of_vit_names_are_read(tmp_path):
    """transformers 5 uses other names in memory than in the files that it writes."""
    reference = towers.reference("vit")
    old = loaded(reference, tmp_path)
    assert any(name.startswith("vit.layers.") for name in reference.state_dict())
    save_file(reference.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    new = load_from(tmp_path)
    for one, other in zip(old.parameters(), new.parameters(), strict=True):
        assert torch.equal(one, other)


# --- saved here


def outputs(reference: Any, kind: str) -> Tensor:
    """The outputs of transformers' model for seeded images and texts."""
    torch.manual_seed(7)
    images, tokens = pixels(3, TINY_IMAGE), texts(3, 55)
    if kind in ("siglip", "clip"):
        return reference(input_ids=tokens, pixel_values=images).logits_per_image
    return reference(pixel_values=images).logits


@pytest.mark.parametrize("kind", ["siglip", "clip", "vit", "siglip_classifier", "clip_classifier"])
@torch.inference_mode()
def test_saved_models_are_loaded_by_transformers_and_here(tmp_path, kind):
    reference = towers.reference(kind, **({"eos_token_id": 55} if "clip" in kind else {}))
    model = loaded(reference, tmp_path / "stored")
    if kind in ("vit", "siglip_classifier"):
        vision = replace(model.config.vision, dropout=0.1)
        model.config = replace(model.config, vision=vision)
    save_encoder(model, tmp_path / "saved", dtype=torch.float32)
    again = load_from(tmp_path / "saved")
    assert again.config == model.config
    assert all(map(torch.equal, again.parameters(), model.parameters()))
    theirs, info = type(reference).from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(info.values()), info  # exactly its tensors are saved
    assert_close(outputs(theirs.eval(), kind), outputs(reference, kind))
    assert theirs.config.id2label == reference.config.id2label


def test_weights_are_saved_in_the_requested_dtype(tmp_path):
    model = loaded(towers.reference("siglip"), tmp_path / "stored")
    save_encoder(model, tmp_path / "saved", dtype=torch.bfloat16)
    tensors = load_file(tmp_path / "saved" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "bfloat16"


# --- refusals


def test_missing_tensor_has_the_name_of_the_checkpoint(tmp_path):
    reference = towers.reference("siglip")
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
def test_unsupported_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        read(values)


@pytest.mark.parametrize("id2label", [{"0": "a", "2": "b"}, {"x": "a"}, {"0": 1}, ["a"]])
def test_labels_are_complete(id2label):
    with pytest.raises(ValueError, match="id2label does not name"):
        read({"model_type": "vit", "id2label": id2label})
