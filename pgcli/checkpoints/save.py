"""Writes models as checkpoints in the layout of transformers, which `--model` reads too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pgcli.checkpoints import adapters, weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.names import CLASSIFIER, CLIP, PALIGEMMA, SIGLIP, VIT, TensorNames
from pgcli.checkpoints.safetensors_files import (
    TORCH_DTYPES,
    TensorSpec,
    check_dtype,
    read_headers,
    write_tensors,
)
from pgcli.checkpoints.weight_files import (
    GENERATION,
    IMAGE_PROCESSOR_FILES,
    TOKENIZER_FILES,
    weight_files,
)
from pgcli.checkpoints.weights import meta_model, param_slices
from pgcli.model.classifier import ImageClassifier
from pgcli.model.config import (
    Activation,
    DecoderConfig,
    PaliGemmaConfig,
    TextConfig,
    VisionConfig,
)
from pgcli.model.paligemma import PaliGemma
from pgcli.model.two_towers import TwoTowers

HIDDEN_ACT: Mapping[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
}


def save(model: PaliGemma, folder: Path, *, dtype: torch.dtype) -> None:
    """Write `config.json` and `model.safetensors`, with fused weights split into stored ones.

    Raises ValueError for a model whose weights are packed, quantized or have adapters.
    """
    names = dict(model.named_parameters()).keys()
    missing = dict(meta_model(model.config).named_parameters()).keys() - names
    if missing:
        raise ValueError(f"{min(missing)} is packed, quantized or adapted, and cannot be saved")
    tensors = stored_tensors(model, PALIGEMMA, dtype)
    write_files(folder, config_values(model.config, dtype), tensors)


def save_checkpoint(
    model: PaliGemma, folder: Path, *, source: Path, dtype: torch.dtype | None = None
) -> None:
    """Write the model with the tokenizer and the settings of the checkpoint `source`.

    The folder is loaded by `--model` and by transformers. `dtype` None is that of the stored
    weights of `source`. Raises ValueError for a model with adapters, or packed or quantized.
    """
    save(model, folder, dtype=stored_dtype(source) if dtype is None else dtype)
    copy_files(source, folder, (*TOKENIZER_FILES, *IMAGE_PROCESSOR_FILES, GENERATION))


def merge_adapter(base: Path, adapter: Path, folder: Path) -> None:
    """Write the checkpoint `base` with a PEFT adapter merged into its weights.

    Sums are computed in float32 and rounded once to the dtype in which `base` is stored. Raises
    InvalidCheckpoint as `weights.load` and `adapters.merge` do.
    """
    model = weights.load(base, read_config(base), dtype=stored_dtype(base))
    adapters.merge(model, adapter)
    save_checkpoint(model, folder, source=base)


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype of a checkpoint's weights; of several the widest."""
    dtype: torch.dtype | None = None
    for file in weight_files(folder):
        for tensor in read_headers(file):
            check_dtype(tensor)
            found = TORCH_DTYPES[tensor.dtype]
            dtype = found if dtype is None else torch.promote_types(dtype, found)
    return dtype or torch.float32


def copy_files(source: Path, folder: Path, names: tuple[str, ...]) -> bool:
    """Copy those files of a checkpoint that it has; return whether it has any."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [name for name in names if (source / name).is_file()]
    for name in found:
        if (source / name).resolve() != (folder / name).resolve():
            shutil.copyfile(source / name, folder / name)
    return bool(found)


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
    tensors = stored_tensors(model, SIGLIP if is_siglip else CLIP, dtype)
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


def config_values(config: PaliGemmaConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The values of a `config.json` that `parse_config` reads as the same configuration."""
    decoder, stop = config.decoder, list(config.stop_tokens)
    return {
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "model_type": "paligemma",
        "bos_token_id": 2,
        "eos_token_id": stop[0] if len(stop) == 1 else stop,
        "pad_token_id": 0,
        "dtype": str(dtype).removeprefix("torch."),
        "hidden_size": decoder.width,
        "image_token_index": config.image_token_id,
        "projection_dim": decoder.width,
        "tie_word_embeddings": config.tied,
        "vocab_size": decoder.vocab_size,
        "text_config": _text_values(config),
        "vision_config": _paligemma_vision(config),
    }


def _text_values(config: PaliGemmaConfig) -> dict[str, Any]:
    decoder = config.decoder
    return {
        "model_type": "gemma",
        **_gemma2_values(decoder),
        "hidden_size": decoder.width,
        "num_hidden_layers": decoder.depth,
        "intermediate_size": decoder.mlp_dim,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "vocab_size": decoder.vocab_size,
        "rms_norm_eps": decoder.norm_eps,
        "rope_theta": decoder.rope_theta,
        "max_position_embeddings": decoder.max_positions,
        "num_image_tokens": config.image_tokens,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": config.tied,
    }


def _paligemma_vision(config: PaliGemmaConfig) -> dict[str, Any]:
    vision = config.vision
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": vision.width,
        "num_hidden_layers": vision.depth,
        "intermediate_size": vision.mlp_dim,
        "num_attention_heads": vision.num_heads,
        "patch_size": vision.patch_size,
        "image_size": vision.resolution,
        "layer_norm_eps": vision.norm_eps,
        "num_image_tokens": config.image_tokens,
        "projection_dim": config.decoder.width,
        "vision_use_head": False,
    }


def _gemma2_values(decoder: DecoderConfig) -> dict[str, Any]:
    """The settings of Gemma 2, if the decoder is one."""
    if not decoder.post_norms:
        return {}
    kinds = {True: "sliding_attention", False: "full_attention"}
    return {
        "model_type": "gemma2",
        "query_pre_attn_scalar": decoder.query_pre_attn_scalar,
        "attn_logit_softcapping": decoder.attn_softcap,
        "final_logit_softcapping": decoder.final_softcap,
        "sliding_window": decoder.sliding_window,
        "layer_types": [kinds[is_sliding] for is_sliding in decoder.sliding_layers],
    }


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


def stored_tensors(
    model: nn.Module, names: TensorNames, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The tensors of the model by their names on the Hub, fused weights split into stored ones."""
    parameters = dict(model.named_parameters())
    tensors = {}
    for name, part in param_slices(model).items():
        value = parameters[part.parameter].detach()
        rows = value.narrow(0, part.start, part.shape[0]) if part.shape else value
        tensors[names.hub_name(name)] = rows.to("cpu", dtype).contiguous()
    return tensors


def write_files(
    folder: Path,
    values: Mapping[str, Any],
    tensors: dict[str, torch.Tensor],
    *,
    names: tuple[str, str] = ("config.json", "model.safetensors"),
) -> None:
    """Write the values and the tensors to the files of these names, each replaced as a whole.

    Raises OSError.
    """
    config, weights = names
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{weights}.part"
    given = [(TensorSpec(name, one.dtype, one.shape), one) for name, one in sorted(tensors.items())]
    specs = [spec for spec, _ in given]
    write_tensors(unfinished, specs, (tensor for _, tensor in given), {"format": "pt"})
    unfinished.replace(folder / weights)
    unfinished = folder / f".{config}.part"
    unfinished.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / config)
