"""Writes two towers and image classifiers in the layout of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pgcli.checkpoints.names import CLASSIFIER, SIGLIP, TWO_TOWERS, VIT
from pgcli.checkpoints.save import stored_tensors, write_files
from pgcli.model.classifier import ImageClassifier
from pgcli.model.config import Activation, TextConfig, VisionConfig
from pgcli.model.two_towers import TwoTowers

HIDDEN_ACT: Mapping[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
}


def save_two_towers(
    model: TwoTowers, folder: Path, *, dtype: torch.dtype, pad_token: int = 1
) -> None:
    """Write `config.json` and `model.safetensors` of SigLIP or CLIP.

    Raises ValueError for a vision tower without a text tower.
    """
    config = model.config
    if config.text is None:
        raise ValueError("this model has no text tower")
    is_siglip = config.family == "siglip"
    tensors = stored_tensors(model, SIGLIP if is_siglip else TWO_TOWERS, dtype)
    text = _sizes(config.text) | {
        "vocab_size": config.text.vocab_size,
        "max_position_embeddings": config.text.max_positions,
        "pad_token_id": pad_token,
        "bos_token_id": None,
    }
    vision = _vision_values(config.vision)
    values: dict[str, Any] = {
        "architectures": ["SiglipModel" if is_siglip else "CLIPModel"],
        "model_type": config.family,
        "dtype": str(dtype).removeprefix("torch."),
    }
    if is_siglip:
        # transformers has one value for each, which it stores as a vector
        tensors |= {name: tensors[name].reshape(1) for name in ("logit_scale", "logit_bias")}
        if not config.has_sigmoid:
            values["contrastive_loss"] = "softmax"  # its sigmoid is no score
        text |= {"model_type": "siglip_text_model", "projection_size": config.embedding_dim}
        vision |= {"model_type": "siglip_vision_model"}
    else:
        eos = 2 if config.text.eos_token is None else config.text.eos_token
        text |= {"model_type": "clip_text_model", "eos_token_id": eos}
        vision |= {"model_type": "clip_vision_model"}
        values["projection_dim"] = config.embedding_dim
    values |= {"text_config": text, "vision_config": vision}
    write_files(folder, values, tensors)


def save_classifier(model: ImageClassifier, folder: Path, *, dtype: torch.dtype) -> None:
    """Write `config.json` and `model.safetensors` of a ViT, or of SigLIP or CLIP with a head."""
    config = model.config
    tensors = stored_tensors(model, VIT if config.family == "vit" else CLASSIFIER, dtype)
    vision = _vision_values(config.vision)
    labels = {str(number): label for number, label in enumerate(config.labels)}
    values: dict[str, Any] = {
        "model_type": config.family,
        "dtype": str(dtype).removeprefix("torch."),
        "id2label": labels,
        "label2id": {label: int(number) for number, label in labels.items()},
    }
    if config.family == "vit":
        for name in ("vit.embeddings.cls_token", "vit.embeddings.position_embeddings"):
            tensors[name] = tensors[name].reshape(1, -1, config.vision.width)
        vision["hidden_dropout_prob"] = vision.pop("dropout")
        vision["attention_probs_dropout_prob"] = vision.pop("attention_dropout")
        values |= {"architectures": ["ViTForImageClassification"], **vision, "qkv_bias": True}
    elif config.family == "siglip":
        vision |= {"model_type": "siglip_vision_model", "vision_use_head": False}
        values |= {"architectures": ["SiglipForImageClassification"], "vision_config": vision}
    else:
        vision |= {"model_type": "clip_vision_model"}
        values |= {"architectures": ["CLIPForImageClassification"], "vision_config": vision}
    write_files(folder, values, tensors)


def _vision_values(config: VisionConfig) -> dict[str, Any]:
    return _sizes(config) | {
        "image_size": config.resolution,
        "patch_size": config.patch_size,
        "num_channels": 3,
    }


def _sizes(config: VisionConfig | TextConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "intermediate_size": config.mlp_dim,
        "num_attention_heads": config.num_heads,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": HIDDEN_ACT[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }
