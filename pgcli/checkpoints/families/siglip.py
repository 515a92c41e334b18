"""SigLIP, and SigLIP 2 of fixed resolution: both towers, the vision tower alone, a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.families import Family
from pgcli.checkpoints.families.encoders import (
    BESIDE_CLASSIFIER,
    POSITION_IDS,
    TEXT_NAMES,
    VISION_NAMES,
    defaults,
    read_labels,
    read_level,
    read_text,
    read_vision,
    write_labels,
    write_tower,
)
from pgcli.checkpoints.names import TensorNames
from pgcli.model.config import ClassifierConfig, TwoTowersConfig

DEFAULTS = defaults("gelu_pytorch_tanh", 1e-6, patch_size=16, vocab_size=32_000, max_positions=64)
NAMES = TensorNames(
    (*VISION_NAMES, ("text_model.head.", "text_projection."), *TEXT_NAMES),
    unused=POSITION_IDS,
    dimensions={"logit_scale": 1, "logit_bias": 1},
)


def read(values: Mapping[str, Any]) -> TwoTowersConfig:
    keys = ConfigReader("", values)
    vision = read_vision(read_level(keys, "vision_config"), DEFAULTS)
    text_keys = read_level(keys, "text_config")
    text = read_text(text_keys, DEFAULTS)
    embedding_dim = text_keys.integer("projection_size", text.width)
    if embedding_dim != vision.width:
        raise ValueError(
            f"texts have embeddings of {embedding_dim} values, images of {vision.width}"
        )
    has_sigmoid = keys.pop("contrastive_loss", "sigmoid") == "sigmoid"
    keys.finish()
    return TwoTowersConfig("siglip", vision, text, embedding_dim, has_sigmoid=has_sigmoid)


def read_vision_tower(values: Mapping[str, Any]) -> TwoTowersConfig:
    vision = read_vision(ConfigReader("", values), DEFAULTS)
    return TwoTowersConfig("siglip", vision, text=None, embedding_dim=vision.width)


def read_classifier(values: Mapping[str, Any]) -> ClassifierConfig:
    keys = ConfigReader("", values)
    labels = read_labels(keys)
    keys.finish()
    return ClassifierConfig(
        "siglip", read_vision(read_level(keys, "vision_config"), DEFAULTS), labels
    )


def write(config: TwoTowersConfig) -> dict[str, Any]:
    assert config.text is not None
    text = {"model_type": "siglip_text_model", "projection_size": config.embedding_dim}
    loss = {} if config.has_sigmoid else {"contrastive_loss": "softmax"}  # its sigmoid is no score
    return {
        "architectures": ["SiglipModel"],
        "model_type": "siglip",
        **loss,
        "text_config": write_tower(config.text) | text,
        "vision_config": write_tower(config.vision) | {"model_type": "siglip_vision_model"},
    }


def write_classifier(config: ClassifierConfig) -> dict[str, Any]:
    vision = {"model_type": "siglip_vision_model", "vision_use_head": False}
    return {
        "architectures": ["SiglipForImageClassification"],
        "model_type": "siglip",
        **write_labels(config.labels),
        "vision_config": write_tower(config.vision) | vision,
    }


SIGLIP = Family("two_towers", NAMES, read, write)
VISION_TOWER = Family("vision_tower", NAMES, read_vision_tower, write)
CLASSIFIER = Family(
    "classifier",
    TensorNames((*VISION_NAMES, ("classifier.", "classifier.")), unused=BESIDE_CLASSIFIER),
    read_classifier,
    write_classifier,
)
