"""Writes a model as a checkpoint in the Hugging Face layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pgcli.checkpoints.names import PALIGEMMA, TensorNames
from pgcli.checkpoints.tensor_file import TensorSpec, write_tensors
from pgcli.checkpoints.weights import meta_model, param_slices
from pgcli.model.config import DecoderConfig, PaliGemmaConfig
from pgcli.model.paligemma import PaliGemma


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
        "vision_config": _vision_values(config),
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


def _vision_values(config: PaliGemmaConfig) -> dict[str, Any]:
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
