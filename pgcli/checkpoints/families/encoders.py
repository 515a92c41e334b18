"""The common part of the configurations of SigLIP, CLIP and ViT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pgcli.checkpoints.config_reader import LAYERS, ConfigReader, SizeKey, read_sizes, write_sizes
from pgcli.checkpoints.families import Family
from pgcli.checkpoints.names import Pairs, TensorNames
from pgcli.model.config import Activation, ClassifierConfig, TextConfig, VisionConfig

FamilyName = Literal["siglip", "clip", "vit"]

VISION = (
    *LAYERS,
    SizeKey("patch_size", "patch_size", 1024),
    SizeKey("resolution", "image_size", 8192),
)
TEXT = (
    *LAYERS,
    SizeKey("vocab_size", "vocab_size", 1 << 24),
    SizeKey("max_positions", "max_position_embeddings", 1 << 16),
)
#: The names of activations in configurations; pgcli writes the first name of each.
ACTIVATIONS: MappingProxyType[str, Activation] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "quick_gelu": "quick_gelu",
    }
)
#: The names of a vision tower's tensors.
VISION_NAMES: Pairs = (
    ("vision_model.head.", "image_pooling."),
    ("vision_model.pre_layrnorm.", "vision.pre_layernorm."),
    ("vision_model.encoder.layers.", "vision.layers."),
    ("vision_model.", "vision."),
    # saved on its own
    ("head.", "image_pooling."),
    ("encoder.layers.", "vision.layers."),
    ("embeddings.", "vision.embeddings."),
    ("post_layernorm.", "vision.post_layernorm."),
)
TEXT_NAMES: Pairs = (
    ("text_model.encoder.layers.", "text.layers."),
    ("text_model.final_layer_norm.", "text.final_layer_norm."),
    ("text_model.embeddings.", "text."),
    ("logit_", "logit_"),
)
POSITION_IDS = r"\.position_ids$"  # a buffer of earlier versions
#: The tensors that a classification head does not use.
BESIDE_CLASSIFIER = (
    r"^(vision_model\.head|text_model|text_projection|visual_projection)\.|" + POSITION_IDS
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What transformers assumes where the configuration of a tower has no value.

    `features` are the fields of a vision tower in which its family differs from SigLIP.
    """

    activation: str
    norm_eps: float
    sizes: Mapping[str, int]
    features: Mapping[str, Any] = field(default_factory=dict)


#: The sizes of a base model.
BASE = {"width": 768, "depth": 12, "mlp_dim": 3072, "num_heads": 12, "resolution": 224}


def read_vision(keys: ConfigReader, default: Defaults) -> VisionConfig:
    """The sizes of a vision tower."""
    keys.expect("num_channels", 3)
    keys.expect("qkv_bias", True)
    config = VisionConfig(**_read(keys, VISION, default), **default.features)
    if config.patch_size > config.resolution:
        raise keys.refuse(
            "patch_size", config.patch_size, f", and the image size is {config.resolution}"
        )
    return config


def read_text_config(keys: ConfigReader, default: Defaults, **features: Any) -> TextConfig:
    """The sizes of a text tower."""
    return TextConfig(**_read(keys, TEXT, default), **features)


def read_level(keys: ConfigReader, name: str) -> ConfigReader:
    """The configuration of one tower."""
    # where CLIP's first configurations have both, transformers takes the dict
    values, override = keys.pop(name, {}), keys.pop(f"{name}_dict")
    return ConfigReader(name, values if override is None else override)


def read_id2label(keys: ConfigReader) -> tuple[str, ...]:
    """The labels in the order of their ids; transformers assumes two without names."""
    id2label = keys.pop("id2label")
    if id2label is None:
        return "LABEL_0", "LABEL_1"
    labels = id2label if isinstance(id2label, dict) else {}
    ids = [str(number) for number in range(len(labels))]
    if not ids or labels.keys() != {*ids} or not all(isinstance(x, str) for x in labels.values()):
        raise ValueError("id2label does not name the classes 0, 1, 2, ...")
    return tuple(labels[number] for number in ids)


def write_tower(config: VisionConfig | TextConfig) -> dict[str, Any]:
    """The values of a tower, which are read as the same."""
    sizes, more = (VISION, {"num_channels": 3}) if isinstance(config, VisionConfig) else (TEXT, {})
    return {
        **write_sizes(config, sizes),
        **more,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": next(key for key, name in ACTIVATIONS.items() if name == config.activation),
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }


def classifier(
    family: FamilyName, architecture: str, default: Defaults, vision: dict[str, Any]
) -> Family:
    """The family of classifiers with this vision tower; `vision` is added to its configuration."""

    def read(values: Mapping[str, Any]) -> ClassifierConfig:
        keys = ConfigReader("", values)
        labels = read_id2label(keys)
        keys.finish()
        return ClassifierConfig(
            family, read_vision(read_level(keys, "vision_config"), default), labels
        )

    def write(config: ClassifierConfig) -> dict[str, Any]:
        return {
            "architectures": [architecture],
            "model_type": family,
            **write_labels(config.labels),
            "vision_config": write_tower(config.vision) | vision,
        }

    names = TensorNames((*VISION_NAMES, ("classifier.", "classifier.")), unused=BESIDE_CLASSIFIER)
    return Family("classifier", names, read, write)


def write_labels(labels: tuple[str, ...]) -> dict[str, Any]:
    """The names of a classifier's classes."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def _read(keys: ConfigReader, sizes: tuple[SizeKey, ...], default: Defaults) -> dict[str, Any]:
    """The fields that both kinds of towers have."""
    keys.finish()
    activation = str(keys.pop("hidden_act", default.activation))
    if activation not in ACTIVATIONS:
        raise keys.refuse("hidden_act", activation, f"; supported: {', '.join(ACTIVATIONS)}")
    return {
        **read_sizes(keys, sizes, default.sizes),
        "norm_eps": keys.positive("layer_norm_eps", default.norm_eps),
        "activation": ACTIVATIONS[activation],
        "dropout": keys.fraction("hidden_dropout_prob", keys.fraction("dropout", 0.0)),
        "attention_dropout": keys.fraction(
            "attention_probs_dropout_prob", keys.fraction("attention_dropout", 0.0)
        ),
    }
