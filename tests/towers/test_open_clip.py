"""CLIP and SigLIP in open_clip's layout give the same vectors as in that of transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from pgcli.checkpoints import open_clip_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_image_spec
from pgcli.checkpoints.open_clip_config import TimmSizes, parse_open_clip
from pgcli.errors import InvalidCheckpoint
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.images.in_memory import encode_image
from pgcli.records import DecodedImage, Item
from pgcli.towers.engine import EmbeddingEngine
from pgcli.towers.loader import load
from tests.support import open_clip_layout, towers
from tests.support.open_clip_layout import CLIP_CONFIG, SIGLIP_CONFIG

TEXTS = ["A small, red star!", "a polar_bear &amp; a blue circle", "a GREEN   triangle " * 9]


@pytest.fixture(autouse=True)
def tiny_timm(monkeypatch) -> None:
    """timm has no vision tower of SigLIP that is small enough for a test."""
    sizes = {"tiny": TimmSizes(48, 3, 4, 2.0)}
    monkeypatch.setattr(open_clip_config, "TIMM", open_clip_config.TIMM | sizes)


def checkpoint_into(folder: Path, kind: str, *, act: str = "gelu") -> Any:
    """Write a tiny checkpoint; transformers' model with the same weights."""
    folder.mkdir(exist_ok=True)
    tokenizer = towers.tokenizer_into(folder, kind)
    vocab_size = tokenizer.get_vocab_size()
    text: dict[str, Any] = {"vocab_size": vocab_size}
    if kind == "clip":
        text["eos_token_id"] = tokenizer.token_to_id("<|endoftext|>")
        model = towers.reference(kind, sizes=towers.TINY | {"hidden_act": "quick_gelu"}, **text)
        open_clip_layout.clip_into(folder, model)
        open_clip_layout.write_config(folder, CLIP_CONFIG, vocab_size)
    else:
        model = towers.reference(kind, sizes=towers.TINY | {"hidden_act": act}, **text)
        open_clip_layout.siglip_into(folder, model)
        open_clip_layout.write_config(folder, SIGLIP_CONFIG, vocab_size, open_clip_layout.SQUASH)
    return model


def engine_of(folder: Path) -> EmbeddingEngine:
    return load(Checkpoint("tiny", folder), device="cpu", batch_size=4)


def decoded(spec: ImageSpec, size: tuple[int, int]) -> DecodedImage:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    data = encode_image(Image.fromarray(pixels))
    return decode(Item(0, "0", "", data=data), spec, ImageLimits())


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_embeddings_are_those_of_transformers_layout(tmp_path, kind):
    model = checkpoint_into(tmp_path, kind)
    engine = engine_of(tmp_path)
    assert (engine.kind, engine.has_sigmoid) == ("two_towers", kind == "siglip")
    assert read_image_spec(tmp_path) == engine.spec
    stream = [(row, decoded(engine.spec, (40 + row, 61))) for row in range(5)]
    normalized = torch.from_numpy(np.stack([one.pixels for _, one in stream if one is not None]))
    mean, std = engine._mean, engine._std
    pixels = ((normalized / 255 - mean) / std).permute(0, 3, 1, 2)
    tokens = engine._texts(TEXTS)
    with torch.inference_mode():
        out = model(input_ids=tokens, pixel_values=pixels)
    vectors = np.stack([one.vector for _, one in engine.encode(stream)])
    texts = engine.encode_texts(TEXTS)
    np.testing.assert_allclose(vectors, out.image_embeds, atol=1e-5)
    np.testing.assert_allclose(texts, out.text_embeds, atol=1e-5)
    np.testing.assert_allclose(engine.scores(vectors @ texts.T), out.logits_per_image, atol=1e-4)


def test_texts_are_cleaned_as_the_configuration_says(tmp_path):
    checkpoint_into(tmp_path, "siglip")
    engine = engine_of(tmp_path)
    clean = "a polar bear a blue circle"
    assert torch.equal(engine._texts([TEXTS[1]]), engine._texts([clean], raw=True))


def margins(size: tuple[int, int], *, rounds_margin: bool) -> np.ndarray:
    spec = ImageSpec(32, resize_to=32, keeps_aspect=True, rounds_margin=rounds_margin)
    return decoded(spec, size).pixels


def test_margin_of_the_crop_is_that_of_torchvision():
    """A surplus of 3 pixels: torchvision leaves out 2 before the centre, transformers 1."""
    rounded, floored = (margins((32, 35), rounds_margin=rounds) for rounds in (True, False))
    assert np.array_equal(rounded[:, :-1], floored[:, 1:])
    assert not np.array_equal(rounded, floored)


def changed(config: dict[str, Any], level: str, **values: Any) -> dict[str, Any]:
    inner = config[level] | values if level else None
    return {"model_cfg": config | ({level: inner} if level else values)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed(CLIP_CONFIG, "vision_cfg", layers=[3, 4, 6, 3]), "vision_cfg.layers"),
        (changed(CLIP_CONFIG, "vision_cfg", pool_type="avg"), "vision_cfg.pool_type"),
        (changed(CLIP_CONFIG, "vision_cfg", qk_norm=True), "vision_cfg.qk_norm = True"),
        (changed(CLIP_CONFIG, "vision_cfg", timm_model_name="resnet50"), "timm_model_name is"),
        (changed(CLIP_CONFIG, "text_cfg", hf_model_name="roberta"), "hf_model_name = 'roberta'"),
        (changed(CLIP_CONFIG, "text_cfg", tokenizer_kwargs={"clean": "x"}), "kwargs.clean is 'x'"),
        (changed(CLIP_CONFIG, "", multimodal_cfg={}), "model_cfg.multimodal_cfg"),
        (changed(CLIP_CONFIG, "", init_logit_bias=-10), "model_cfg.init_logit_bias"),
        (changed(SIGLIP_CONFIG, "text_cfg", pool_type="argmax"), "text_cfg.pool_type"),
        (changed(SIGLIP_CONFIG, "", embed_dim=40), "embeddings of 40 values"),
        ({"model_cfg": CLIP_CONFIG, "preprocess_cfg": {"resize_mode": "longest"}}, "resize_mode"),
        ({"model_cfg": CLIP_CONFIG, "preprocess_cfg": {"std": [1, 0, 1]}}, "preprocess_cfg.std"),
        ({}, "model_cfg is missing"),
    ],
)
def test_unsupported_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        parse_open_clip(values)


def test_missing_tensor_has_the_name_of_open_clip(tmp_path):
    checkpoint_into(tmp_path, "siglip")
    file = tmp_path / "open_clip_model.safetensors"
    tensors = load_file(file)
    del tensors["visual.trunk.attn_pool.kv.weight"]
    save_file(tensors, file)
    with pytest.raises(InvalidCheckpoint, match=r"visual\.trunk\.attn_pool\.kv\.weight is missing"):
        engine_of(tmp_path)


# --- compared with open_clip itself


def own_model(kind: str, config: dict[str, Any], vocab_size: int) -> Any:
    open_clip = pytest.importorskip(
        "open_clip", reason="open_clip is not installed", exc_type=ImportError
    )
    torch.manual_seed(0)
    text = config["text_cfg"] | {"vocab_size": vocab_size}
    known = {key: value for key, value in config.items() if key != "custom_text"}
    make: Callable[..., Any] = open_clip.CustomTextCLIP if kind == "siglip" else open_clip.CLIP
    model = make(**known | {"text_cfg": text})
    scale = {"logit_scale": 2.0, "logit_bias": -3.0}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in scale:
                parameter.fill_(scale[name])
            elif parameter.ndim == 2 and "embedding" not in name:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def compare(folder: Path, kind: str, config: dict[str, Any], preprocess: dict[str, Any]) -> None:
    """Pixels, embeddings and logits of open_clip's own model and transforms."""
    open_clip = pytest.importorskip(
        "open_clip", reason="open_clip is not installed", exc_type=ImportError
    )
    vocab_size = towers.tokenizer_into(folder, kind).get_vocab_size()
    config = config | {"text_cfg": config["text_cfg"] | {"context_length": towers.TEXT_LENGTH}}
    model = own_model(kind, config, vocab_size)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    open_clip_layout.write_config(folder, config, vocab_size, preprocess)
    engine = engine_of(folder)
    prepare = open_clip.image_transform(
        config["vision_cfg"]["image_size"], is_train=False, **preprocess
    )
    images = [
        Image.fromarray(np.random.default_rng(n).integers(0, 256, (90 + 7 * n, 301, 3), np.uint8))
        for n in range(3)
    ]
    stream = [
        (n, decode(Item(n, "", "", data=encode_image(one)), engine.spec, ImageLimits()))
        for n, one in enumerate(images)
    ]
    tokens = engine._texts(TEXTS)
    with torch.inference_mode():
        pixels = torch.stack([prepare(one) for one in images])
        expected_images = model.encode_image(pixels, normalize=True)
        expected_texts = model.encode_text(tokens, normalize=True)
        expected = model.get_logits(pixels, tokens)[0]
    vectors = np.stack([one.vector for _, one in engine.encode(stream)])
    texts = engine.encode_texts(TEXTS)
    np.testing.assert_allclose(vectors, expected_images, atol=1e-5)
    np.testing.assert_allclose(texts, expected_texts, atol=1e-5)
    np.testing.assert_allclose(engine.scores(vectors @ texts.T), expected, atol=1e-4)
    assert vectors.std(axis=0).mean() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B-32-quickgelu", "ViT-B-16-SigLIP2"])
def test_embeddings_of_base_size_are_those_of_open_clip(tmp_path, name):
    open_clip = pytest.importorskip(
        "open_clip", reason="open_clip is not installed", exc_type=ImportError
    )
    config = open_clip.get_model_config(name)
    kind = "siglip" if "SigLIP" in name else "clip"
    preprocess = {"resize_mode": "shortest"} if kind == "clip" else open_clip_layout.SQUASH
    compare(tmp_path, kind, config, preprocess)


def test_transformers_layout_is_preferred_where_both_are_there(tmp_path):
    towers.checkpoint_into(tmp_path, "siglip")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {}}))
    assert engine_of(tmp_path).kind == "two_towers"
