"""Checkpoints of transformers written in open_clip's layout."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support import towers

#: The sizes of `towers.TINY` and `towers.TINY_IMAGE`, as open_clip names them.
CLIP_CONFIG: dict[str, Any] = {
    "embed_dim": 40,
    "quick_gelu": True,
    "vision_cfg": {
        "image_size": 32,
        "layers": 3,
        "width": 48,
        "head_width": 12,
        "mlp_ratio": 2.0,
        "patch_size": 8,
    },
    "text_cfg": {
        "context_length": towers.TEXT_LENGTH,
        "width": 48,
        "heads": 4,
        "layers": 3,
        "mlp_ratio": 2.0,
    },
}
SIGLIP_CONFIG: dict[str, Any] = {
    "embed_dim": 48,
    "init_logit_bias": -10,
    "custom_text": True,
    "vision_cfg": {
        "image_size": 32,
        "timm_model_name": "vit_tiny_patch8_siglip_32",
        "timm_model_pretrained": False,
        "timm_pool": "map",
        "timm_proj": "none",
    },
    "text_cfg": {
        "context_length": towers.TEXT_LENGTH,
        "hf_tokenizer_name": "here",
        "tokenizer_kwargs": {"clean": "canonicalize"},
        "width": 48,
        "heads": 4,
        "layers": 3,
        "mlp_ratio": 2.0,
        "no_causal_mask": True,
        "proj_bias": True,
        "pool_type": "last",
        "norm_kwargs": {"eps": 1e-6},
    },
}
SQUASH = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"}


def write_config(
    folder: Path, config: dict[str, Any], vocab_size: int, preprocess: dict[str, Any] | None = None
) -> None:
    """Write open_clip_config.json for a text tower with this vocabulary."""
    config = config | {"text_cfg": config["text_cfg"] | {"vocab_size": vocab_size}}
    values = {"model_cfg": config, "preprocess_cfg": preprocess or {}}
    (folder / "open_clip_config.json").write_text(json.dumps(values))


def clip_into(folder: Path, model: Any) -> None:
    """Write transformers' CLIP as open_clip's."""
    stored = model.state_dict()
    vision, text = "vision_model.", "text_model."
    out = {
        "logit_scale": stored["logit_scale"],
        "visual.class_embedding": stored[f"{vision}embeddings.class_embedding"],
        "visual.positional_embedding": stored[f"{vision}embeddings.position_embedding.weight"],
        "visual.conv1.weight": stored[f"{vision}embeddings.patch_embedding.weight"],
        "visual.proj": stored["visual_projection.weight"].T,
        "text_projection": stored["text_projection.weight"].T,
        "positional_embedding": stored[f"{text}embeddings.position_embedding.weight"],
        "token_embedding.weight": stored[f"{text}embeddings.token_embedding.weight"],
    }
    for kind in ("weight", "bias"):
        out[f"visual.ln_pre.{kind}"] = stored[f"{vision}pre_layrnorm.{kind}"]
        out[f"visual.ln_post.{kind}"] = stored[f"{vision}post_layernorm.{kind}"]
        out[f"ln_final.{kind}"] = stored[f"{text}final_layer_norm.{kind}"]
    for number in range(model.config.vision_config.num_hidden_layers):
        _layer(out, f"visual.transformer.resblocks.{number}.", stored, f"{vision}", number)
        _layer(out, f"transformer.resblocks.{number}.", stored, f"{text}", number)
    _save(folder, out)


def siglip_into(folder: Path, model: Any) -> None:
    """Write transformers' SigLIP as open_clip's with a vision tower of timm."""
    stored = model.state_dict()
    vision, text, trunk = "vision_model.", "text_model.", "visual.trunk."
    width = model.config.vision_config.hidden_size
    out = {
        "logit_scale": stored["logit_scale"][0],
        "logit_bias": stored["logit_bias"][0],
        f"{trunk}pos_embed": stored[f"{vision}embeddings.position_embedding.weight"][None],
        f"{trunk}attn_pool.latent": stored[f"{vision}head.probe"],
        "text.positional_embedding": stored[f"{text}embeddings.position_embedding.weight"],
        "text.token_embedding.weight": stored[f"{text}embeddings.token_embedding.weight"],
    }
    for kind in ("weight", "bias"):
        in_proj = stored[f"{vision}head.attention.in_proj_{kind}"]
        same = {
            f"{trunk}patch_embed.proj": f"{vision}embeddings.patch_embedding",
            f"{trunk}norm": f"{vision}post_layernorm",
            f"{trunk}attn_pool.proj": f"{vision}head.attention.out_proj",
            f"{trunk}attn_pool.norm": f"{vision}head.layernorm",
            f"{trunk}attn_pool.mlp.fc1": f"{vision}head.mlp.fc1",
            f"{trunk}attn_pool.mlp.fc2": f"{vision}head.mlp.fc2",
            "text.ln_final": f"{text}final_layer_norm",
            "text.text_projection": f"{text}head",
        }
        out |= {f"{name}.{kind}": stored[f"{other}.{kind}"] for name, other in same.items()}
        out[f"{trunk}attn_pool.q.{kind}"] = in_proj[:width]
        out[f"{trunk}attn_pool.kv.{kind}"] = in_proj[width:]
        for number in range(model.config.vision_config.num_hidden_layers):
            layer = f"{vision}encoder.layers.{number}."
            block = f"{trunk}blocks.{number}."
            out[f"{block}attn.qkv.{kind}"] = _qkv(stored, layer, kind)
            for name, other in {
                "norm1": "layer_norm1",
                "attn.proj": "self_attn.out_proj",
                "norm2": "layer_norm2",
                "mlp.fc1": "mlp.fc1",
                "mlp.fc2": "mlp.fc2",
            }.items():
                out[f"{block}{name}.{kind}"] = stored[f"{layer}{other}.{kind}"]
    for number in range(model.config.text_config.num_hidden_layers):
        _layer(out, f"text.transformer.resblocks.{number}.", stored, text, number)
    _save(folder, out)


def _layer(
    out: dict[str, Tensor], block: str, stored: dict[str, Tensor], tower: str, number: int
) -> None:
    layer = f"{tower}encoder.layers.{number}."
    for kind in ("weight", "bias"):
        out[f"{block}attn.in_proj_{kind}"] = _qkv(stored, layer, kind)
        for name, other in {
            "ln_1": "layer_norm1",
            "attn.out_proj": "self_attn.out_proj",
            "ln_2": "layer_norm2",
            "mlp.c_fc": "mlp.fc1",
            "mlp.c_proj": "mlp.fc2",
        }.items():
            out[f"{block}{name}.{kind}"] = stored[f"{layer}{other}.{kind}"]


def _qkv(stored: dict[str, Tensor], layer: str, kind: str) -> Tensor:
    return torch.cat([stored[f"{layer}self_attn.{name}_proj.{kind}"] for name in "qkv"])


def _save(folder: Path, tensors: dict[str, Tensor]) -> None:
    contiguous = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "open_clip_model.safetensors", {"format": "pt"})
