"""CLIP: both towers, and its vision tower with a classification head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.families import Family, encoders
from pgcli.checkpoints.names import TensorNames
from pgcli.model.config import TwoTowersConfig

DEFAULTS = encoders.Defaults(
    "quick_gelu",
    1e-5,
    encoders.BASE | {"patch_size": 32},
    {"class_token": True, "patch_bias": False, "pre_norm": True},
)
TEXT_DEFAULTS = encoders.Defaults(
    "quick_gelu",
    1e-5,
    {
        **{"width": 512, "depth": 12, "mlp_dim": 2048, "num_heads": 8},
        **{"vocab_size": 49_408, "max_positions": 77},
    },
)
NAMES = TensorNames(
    (
        *encoders.VISION_NAMES,
        ("visual_projection.", "image_projection."),
        ("text_projection.", "text_projection."),
        *encoders.TEXT_NAMES,
    ),
    unused=encoders.POSITION_IDS,
)
#: `eos_token_id` of checkpoints from before transformers#24773: the highest token ends a text.
HIGHEST_TOKEN = 2


def read_clip(values: Mapping[str, Any]) -> TwoTowersConfig:
    keys = ConfigReader("", values)
    vision = encoders.read_vision(encoders.read_level(keys, "vision_config"), DEFAULTS)
    text_keys = encoders.read_level(keys, "text_config")
    eos = text_keys.integer("eos_token_id", 49_407, high=1 << 24)
    text = encoders.read_text_config(
        text_keys, TEXT_DEFAULTS, causal=True, eos_token=None if eos == HIGHEST_TOKEN else eos
    )
    embedding_dim = keys.integer("projection_dim", 512)
    keys.finish()
    return TwoTowersConfig("clip", vision, text, embedding_dim)


def write_clip(config: TwoTowersConfig) -> dict[str, Any]:
    assert config.text is not None
    eos = HIGHEST_TOKEN if config.text.eos_token is None else config.text.eos_token
    text = {"model_type": "clip_text_model", "eos_token_id": eos}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": config.embedding_dim,
        "text_config": encoders.write_tower(config.text) | text,
        "vision_config": encoders.write_tower(config.vision) | {"model_type": "clip_vision_model"},
    }


CLIP = Family("two_towers", NAMES, read_clip, write_clip)
CLASSIFIER = encoders.classifier(
    "clip", "CLIPForImageClassification", DEFAULTS, {"model_type": "clip_vision_model"}
)
