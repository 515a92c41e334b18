"""Reads the `config.json` of SigLIP, CLIP and image classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as brief
from types import MappingProxyType
from typing import Any, Literal

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.model.config import (
    Activation,
    ClassifierConfig,
    TextConfig,
    TwoTowersConfig,
    VisionConfig,
)

Family = Literal["siglip", "clip", "vit"]

#: The families by the `model_type` of a configuration.
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {"siglip": "siglip", "siglip_vision_model": "siglip", "clip": "clip", "vit": "vit"}
)
#: The names of activations in configurations; the first of each is that which is written.
ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "quick_gelu": "quick_gelu",
    }
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What transformers assumes where the configuration of a family has no value."""

    activation: str
    norm_eps: float
    patch_size: int
    text_width: int = 768
    text_mlp_dim: int = 3072
    text_heads: int = 12
    vocab_size: int = 32_000
    max_positions: int = 64


DEFAULTS: Mapping[Family, Defaults] = MappingProxyType(
    {
        "siglip": Defaults("gelu_pytorch_tanh", 1e-6, 16),
        "clip": Defaults("quick_gelu", 1e-5, 32, 512, 2048, 8, 49_408, 77),
        "vit": Defaults("gelu", 1e-12, 16),
    }
)


def parse_two_towers(values: Mapping[str, Any]) -> TwoTowersConfig:
    """The sizes of SigLIP, SigLIP's vision tower on its own, or CLIP.

    Raises ValueError with the key's name for a setting that is not supported.
    """
    keys = ConfigReader("", values)
    kind = keys.pop("model_type")
    if kind == "siglip_vision_model":
        vision = _read_vision(keys, "siglip")
        return TwoTowersConfig("siglip", vision, text=None, embedding_dim=vision.width)
    if kind not in ("siglip", "clip"):
        raise ValueError(f"model_type is {brief(kind)}; supported: 'siglip', 'clip'")
    vision = _read_vision(_level(keys, "vision_config"), kind)
    text_keys = _level(keys, "text_config")
    text = _read_text(text_keys, kind)
    if kind == "clip":
        embedding_dim = keys.integer("projection_dim", 512)
    else:
        embedding_dim = text_keys.integer("projection_size", text.width)
        if embedding_dim != vision.width:
            raise ValueError(
                f"texts have embeddings of {embedding_dim} values, images of {vision.width}"
            )
    loss = keys.pop("contrastive_loss", "sigmoid")  # CLIP's towers have no bias in any case
    keys.finish()
    return TwoTowersConfig(kind, vision, text, embedding_dim, has_sigmoid=loss == "sigmoid")


def parse_classifier(values: Mapping[str, Any]) -> ClassifierConfig:
    """The sizes and labels of ViT, SigLIP or CLIP with a classification head.

    Raises ValueError with the key's name for a setting that is not supported.
    """
    keys = ConfigReader("", values)
    kind = str(keys.pop("model_type"))
    if kind not in FAMILIES:
        raise ValueError(f"model_type is {brief(kind)}; supported: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    labels = _labels(keys.pop("id2label"))
    keys.finish()
    level = _level(keys, "vision_config") if "vision_config" in keys.given else keys
    return ClassifierConfig(family, _read_vision(level, family), labels)


def _level(keys: ConfigReader, name: str) -> ConfigReader:
    # where CLIP's first configurations have both, transformers takes the dict
    values, override = keys.pop(name, {}), keys.pop(f"{name}_dict")
    return ConfigReader(name, values if override is None else override)


def _labels(id2label: Any) -> tuple[str, ...]:
    """The labels in the order of their ids; transformers assumes two without names."""
    if id2label is None:
        return "LABEL_0", "LABEL_1"
    ids = [str(number) for number in range(len(id2label))] if isinstance(id2label, dict) else []
    labels = {str(number): label for number, label in id2label.items()} if ids else {}
    if not ids or labels.keys() != {*ids} or not all(isinstance(x, str) for x in labels.values()):
        raise ValueError("id2label does not name the classes 0, 1, 2, ...")
    return tuple(labels[number] for number in ids)


def _read_vision(keys: ConfigReader, family: Family) -> VisionConfig:
    """The sizes of a vision tower."""
    keys.expect("num_channels", 3)
    keys.expect("qkv_bias", True)
    config = VisionConfig(
        **_sizes(keys, family, width=768, mlp_dim=3072, heads=12),
        patch_size=keys.integer("patch_size", DEFAULTS[family].patch_size, high=1024),
        resolution=keys.integer("image_size", 224, high=8192),
        class_token=family != "siglip",
        patch_bias=family != "clip",
        pre_norm=family == "clip",
    )
    if config.patch_size > config.resolution:
        raise keys.refuse(
            "patch_size", config.patch_size, f", and the image size is {config.resolution}"
        )
    return config


def _read_text(keys: ConfigReader, family: Family) -> TextConfig:
    """The sizes of a text tower."""
    default = DEFAULTS[family]
    eos = keys.integer("eos_token_id", 49_407, high=1 << 24)
    return TextConfig(
        **_sizes(
            keys,
            family,
            width=default.text_width,
            mlp_dim=default.text_mlp_dim,
            heads=default.text_heads,
        ),
        vocab_size=keys.integer("vocab_size", default.vocab_size, high=1 << 24),
        max_positions=keys.integer("max_position_embeddings", default.max_positions, high=1 << 16),
        causal=family == "clip",
        # 2 stands for "the highest token" in checkpoints from before transformers#24773
        eos_token=eos if family == "clip" and eos != 2 else None,
    )


def _sizes(
    keys: ConfigReader, family: Family, *, width: int, mlp_dim: int, heads: int
) -> dict[str, Any]:
    """The fields that both towers have; the arguments are the defaults."""
    keys.finish()
    activation = str(keys.pop("hidden_act", DEFAULTS[family].activation))
    if activation not in ACTIVATIONS:
        raise keys.refuse("hidden_act", activation, f"; supported: {', '.join(ACTIVATIONS)}")
    sizes: dict[str, Any] = {
        "width": keys.integer("hidden_size", width),
        "depth": keys.integer("num_hidden_layers", 12, high=1000),
        "mlp_dim": keys.integer("intermediate_size", mlp_dim),
        "num_heads": keys.integer("num_attention_heads", heads, high=4096),
        "norm_eps": keys.positive("layer_norm_eps", DEFAULTS[family].norm_eps),
        "activation": ACTIVATIONS[activation],
        "dropout": keys.fraction("hidden_dropout_prob", keys.fraction("dropout", 0.0)),
        "attention_dropout": keys.fraction(
            "attention_probs_dropout_prob", keys.fraction("attention_dropout", 0.0)
        ),
    }
    if sizes["width"] % sizes["num_heads"]:
        raise keys.refuse(
            "num_attention_heads",
            sizes["num_heads"],
            f", which does not divide the width {sizes['width']}",
        )
    return sizes
