"""CLIP: both towers, and its vision tower with a classification head."""

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
from pgcli.model.config import ClassifierConfig, TwoTowersConfig, VisionConfig

DEFAULTS = defaults("quick_gelu", 1e-5, patch_size=32)
TEXT_DEFAULTS = defaults(
    *("quick_gelu", 1e-5),
    **{"width": 512, "mlp_dim": 2048, "num_heads": 8, "vocab_size": 49_408, "max_positions": 77},
)
#: `eos_token_id` of checkpoints from before transformers#24773: the highest token ends a text.
HIGHEST_TOKEN = 2


def read(values: Mapping[str, Any]) -> TwoTowersConfig:
    keys = ConfigReader("", values)
    vision, text_keys = _read_vision(keys), read_level(keys, "text_config")
    eos = text_keys.integer("eos_token_id", 49_407, high=1 << 24)
    text = read_text(
        text_keys, TEXT_DEFAULTS, causal=True, eos_token=None if eos == HIGHEST_TOKEN else eos
    )
    embedding_dim = keys.integer("projection_dim", 512)
    keys.finish()
    return TwoTowersConfig("clip", vision, text, embedding_dim)


def read_classifier(values: Mapping[str, Any]) -> ClassifierConfig:
    keys = ConfigReader("", values)
    labels = read_labels(keys)
    keys.finish()
    return ClassifierConfig("clip", _read_vision(keys), labels)


def _read_vision(keys: ConfigReader) -> VisionConfig:
    level = read_level(keys, "vision_config")
    return read_vision(level, DEFAULTS, class_token=True, patch_bias=False, pre_norm=True)


def write(config: TwoTowersConfig) -> dict[str, Any]:
    assert config.text is not None
    eos = HIGHEST_TOKEN if config.text.eos_token is None else config.text.eos_token
    text = {"model_type": "clip_text_model", "eos_token_id": eos}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": config.embedding_dim,
        "text_config": write_tower(config.text) | text,
        "vision_config": write_tower(config.vision) | {"model_type": "clip_vision_model"},
    }


def write_classifier(config: ClassifierConfig) -> dict[str, Any]:
    return {
        "architectures": ["CLIPForImageClassification"],
        "model_type": "clip",
        **write_labels(config.labels),
        "vision_config": write_tower(config.vision) | {"model_type": "clip_vision_model"},
    }


CLIP = Family(
    "two_towers",
    TensorNames(
        (
            *VISION_NAMES,
            ("visual_projection.", "image_projection."),
            ("text_projection.", "text_projection."),
            *TEXT_NAMES,
        ),
        unused=POSITION_IDS,
    ),
    read,
    write,
)
CLASSIFIER = Family(
    "classifier",
    TensorNames((*VISION_NAMES, ("classifier.", "classifier.")), unused=BESIDE_CLASSIFIER),
    read_classifier,
    write_classifier,
)
