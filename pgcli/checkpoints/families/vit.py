"""ViT with a classification head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.families import Family, encoders
from pgcli.checkpoints.names import TensorNames
from pgcli.model.config import ClassifierConfig

DEFAULTS = encoders.Defaults(
    "gelu", 1e-12, encoders.BASE | {"patch_size": 16}, {"class_token": True}
)
CLASS_TOKEN = "vision.embeddings.class_embedding"
POSITIONS = "vision.embeddings.position_embedding.weight"
NAMES = TensorNames(
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
    labels = encoders.read_id2label(keys)
    return ClassifierConfig("vit", encoders.read_vision(keys, DEFAULTS), labels)


def write_vit(config: ClassifierConfig) -> dict[str, Any]:
    vision = encoders.write_tower(config.vision)
    vision["hidden_dropout_prob"] = vision.pop("dropout")
    vision["attention_probs_dropout_prob"] = vision.pop("attention_dropout")
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        **vision,
        "qkv_bias": True,
        **encoders.write_labels(config.labels),
    }


VIT = Family("classifier", NAMES, read_vit, write_vit)
