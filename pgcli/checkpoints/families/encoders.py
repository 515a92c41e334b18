"""The families of encoders as tables: SigLIP, SigLIP 2 of fixed resolution, CLIP and ViT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pgcli.checkpoints.families import (
    LAYERS,
    ConfigReader,
    Family,
    Pairs,
    SizeKey,
    TensorNames,
    read_sizes,
    write_sizes,
)
from pgcli.model.config import (
    Activation,
    ClassifierConfig,
    TextConfig,
    TwoTowersConfig,
    VisionConfig,
)

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


SIGLIP_DEFAULTS = Defaults(
    "gelu_pytorch_tanh",
    1e-6,
    BASE | {"patch_size": 16, "vocab_size": 32_000, "max_positions": 64},
)
SIGLIP_NAMES = TensorNames(
    (*VISION_NAMES, ("text_model.head.", "text_projection."), *TEXT_NAMES),
    unused=POSITION_IDS,
    dimensions={"logit_scale": 1, "logit_bias": 1},
)


def read_siglip(values: Mapping[str, Any]) -> TwoTowersConfig:
    keys = ConfigReader("", values)
    vision = read_vision(read_level(keys, "vision_config"), SIGLIP_DEFAULTS)
    text_keys = read_level(keys, "text_config")
    text = read_text_config(text_keys, SIGLIP_DEFAULTS)
    embedding_dim = text_keys.integer("projection_size", text.width)
    if embedding_dim != vision.width:
        raise ValueError(
            f"texts have embeddings of {embedding_dim} values, images of {vision.width}"
        )
    has_sigmoid = keys.pop("contrastive_loss", "sigmoid") == "sigmoid"
    keys.finish()
    return TwoTowersConfig("siglip", vision, text, embedding_dim, has_sigmoid=has_sigmoid)


def read_vision_tower(values: Mapping[str, Any]) -> TwoTowersConfig:
    vision = read_vision(ConfigReader("", values), SIGLIP_DEFAULTS)
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
        "text_config": write_tower(config.text) | text,
        "vision_config": write_tower(config.vision) | {"model_type": "siglip_vision_model"},
    }


SIGLIP = Family("two_towers", SIGLIP_NAMES, read_siglip, write_siglip)
VISION_TOWER = Family("vision_tower", SIGLIP_NAMES, read_vision_tower, write_siglip)
SIGLIP_CLASSIFIER = classifier(
    *("siglip", "SiglipForImageClassification", SIGLIP_DEFAULTS),
    {"model_type": "siglip_vision_model", "vision_use_head": False},
)


CLIP_DEFAULTS = Defaults(
    "quick_gelu",
    1e-5,
    BASE | {"patch_size": 32},
    {"class_token": True, "patch_bias": False, "pre_norm": True},
)
CLIP_TEXT_DEFAULTS = Defaults(
    "quick_gelu",
    1e-5,
    {
        **{"width": 512, "depth": 12, "mlp_dim": 2048, "num_heads": 8},
        **{"vocab_size": 49_408, "max_positions": 77},
    },
)
CLIP_NAMES = TensorNames(
    (
        *VISION_NAMES,
        ("visual_projection.", "image_projection."),
        ("text_projection.", "text_projection."),
        *TEXT_NAMES,
    ),
    unused=POSITION_IDS,
)
#: `eos_token_id` of checkpoints from before transformers#24773: the highest token ends a text.
HIGHEST_TOKEN = 2


def read_clip(values: Mapping[str, Any]) -> TwoTowersConfig:
    keys = ConfigReader("", values)
    vision = read_vision(read_level(keys, "vision_config"), CLIP_DEFAULTS)
    text_keys = read_level(keys, "text_config")
    eos = text_keys.integer("eos_token_id", 49_407, high=1 << 24)
    text = read_text_config(
        text_keys, CLIP_TEXT_DEFAULTS, causal=True, eos_token=None if eos == HIGHEST_TOKEN else eos
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
        "text_config": write_tower(config.text) | text,
        "vision_config": write_tower(config.vision) | {"model_type": "clip_vision_model"},
    }


CLIP = Family("two_towers", CLIP_NAMES, read_clip, write_clip)
CLIP_CLASSIFIER = classifier(
    "clip", "CLIPForImageClassification", CLIP_DEFAULTS, {"model_type": "clip_vision_model"}
)


VIT_DEFAULTS = Defaults("gelu", 1e-12, BASE | {"patch_size": 16}, {"class_token": True})
CLASS_TOKEN = "vision.embeddings.class_embedding"
POSITIONS = "vision.embeddings.position_embedding.weight"
VIT_NAMES = TensorNames(
    prefixes=(
        ("vit.encoder.layer.", "vision.layers."),
        ("vit.encoder.layers.", "vision.layers."),
        ("vit.layers.", "vision.layers."),
        ("vit.layernorm.", "vision.post_layernorm."),
        ("vit.embeddings.cls_token", CLASS_TOKEN),
        ("vit.embeddings.position_embeddings", POSITIONS),
        ("vit.embeddings.patch_embeddings.projection.", "vision.embeddings.patch_embedding."),
        ("classifier.", "classifier."),
    ),
    parts=(
        # names of transformers 4, which transformers 5 also writes
        (".attention.output.dense.", ".self_attn.out_proj."),
        (".attention.attention.query.", ".self_attn.q_proj."),
        (".attention.attention.key.", ".self_attn.k_proj."),
        (".attention.attention.value.", ".self_attn.v_proj."),
        (".intermediate.dense.", ".mlp.fc1."),
        (".output.dense.", ".mlp.fc2."),
        (".layernorm_before.", ".layer_norm1."),
        (".layernorm_after.", ".layer_norm2."),
        # names of transformers 5
        (".attention.o_proj.", ".self_attn.out_proj."),
        (".attention.q_proj.", ".self_attn.q_proj."),
        (".attention.k_proj.", ".self_attn.k_proj."),
        (".attention.v_proj.", ".self_attn.v_proj."),
    ),
    unused=r"^vit\.pooler\.|\.mask_token$",
    dimensions={CLASS_TOKEN: 3, POSITIONS: 3},
)


def read_vit(values: Mapping[str, Any]) -> ClassifierConfig:
    keys = ConfigReader("", values)
    labels = read_id2label(keys)
    return ClassifierConfig("vit", read_vision(keys, VIT_DEFAULTS), labels)


def write_vit(config: ClassifierConfig) -> dict[str, Any]:
    vision = write_tower(config.vision)
    vision["hidden_dropout_prob"] = vision.pop("dropout")
    vision["attention_probs_dropout_prob"] = vision.pop("attention_dropout")
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        **vision,
        "qkv_bias": True,
        **write_labels(config.labels),
    }


VIT = Family("classifier", VIT_NAMES, read_vit, write_vit)
