"""SigLIP, and SigLIP 2 of fixed resolution: both towers, the vision tower alone, a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.families import Family, encoders
from pgcli.checkpoints.names import TensorNames
from pgcli.model.config import TwoTowersConfig

DEFAULTS = encoders.Defaults(
    "gelu_pytorch_tanh",
    1e-6,
    encoders.BASE | {"patch_size": 16, "vocab_size": 32_000, "max_positions": 64},
)
NAMES = TensorNames(
    (*encoders.VISION_NAMES, ("text_model.head.", "text_projection."), *encoders.TEXT_NAMES),
    unused=encoders.POSITION_IDS,
    dimensions={"logit_scale": 1, "logit_bias": 1},
)


def read_siglip(values: Mapping[str, Any]) -> TwoTowersConfig:
    keys = ConfigReader("", values)
    vision = encoders.read_vision(encoders.read_level(keys, "vision_config"), DEFAULTS)
    text_keys = encoders.read_level(keys, "text_config")
    text = encoders.read_text_config(text_keys, DEFAULTS)
    embedding_dim = text_keys.integer("projection_size", text.width)
    if embedding_dim != vision.width:
        raise ValueError(
            f"texts have embeddings of {embedding_dim} values, images of {vision.width}"
        )
    has_sigmoid = keys.pop("contrastive_loss", "sigmoid") == "sigmoid"
    keys.finish()
    return TwoTowersConfig("siglip", vision, text, embedding_dim, has_sigmoid=has_sigmoid)


def read_vision_tower(values: Mapping[str, Any]) -> TwoTowersConfig:
    vision = encoders.read_vision(ConfigReader("", values), DEFAULTS)
    return TwoTowersConfig("siglip", vision, text=None, embedding_dim=vision.width)


def write_siglip(config: TwoTowersConfig) -> dict[str, Any]:
    assert config.text is not None
    text = {"model_type": "siglip_text_model", "projection_size": config.embedding_dim}
    # without the sigmoid loss, the sigmoid of a logit has no meaning
    loss = {} if config.has_sigmoid else {"contrastive_loss": "softmax"}
    return {
        "architectures": ["SiglipModel"],
        "model_type": "siglip",
        **loss,
        "text_config": encoders.write_tower(config.text) | text,
        "vision_config": encoders.write_tower(config.vision)
        | {"model_type": "siglip_vision_model"},
    }


SIGLIP = Family("two_towers", NAMES, read_siglip, write_siglip)
VISION_TOWER = Family("vision_tower", NAMES, read_vision_tower, write_siglip)
CLASSIFIER = encoders.classifier(
    *("siglip", "SiglipForImageClassification", DEFAULTS),
    {"model_type": "siglip_vision_model", "vision_use_head": False},
)
