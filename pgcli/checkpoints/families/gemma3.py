"""Gemma 3 with vision, and MedGemma: SigLIP's tower, a pooling projector, Gemma 3's decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.families import ConfigReader, Family, Pairs, TensorNames, read_sizes
from pgcli.checkpoints.families.paligemma import (
    DECODER,
    TANH_GELU,
    check_decoder,
    read_layer_kinds,
    read_siglip_tower,
    read_window,
)
from pgcli.checkpoints.families.paligemma import NAMES as PALIGEMMA
from pgcli.model.config import DecoderConfig, PaliGemmaConfig

#: transformers' defaults; the published config.json of the smallest model states few sizes.
DECODER_DEFAULTS = {
    "width": 2304,
    "depth": 26,
    "mlp_dim": 9216,
    "num_heads": 8,
    "num_kv_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_positions": 131_072,
}
PATTERN = 6  # each sixth layer is full
ROPE_THETA, LOCAL_ROPE_THETA = 1e6, 1e4
IMAGE_TOKENS = 256
#: The ids of the tokens before, in place of, and after an image.
BEGIN_OF_IMAGE, IMAGE, END_OF_IMAGE = 255_999, 262_144, 256_000
_PROJECTOR: Pairs = (
    ("multi_modal_projector.mm_input_projection_weight", "projector.weight"),
    ("multi_modal_projector.mm_soft_emb_norm.", "projector.norm."),
)
#: They read the names of PaliGemma's tensors too.
GEMMA3_NAMES = TensorNames(
    (
        *_PROJECTOR,
        *((f"model.{name}", own) for name, own in _PROJECTOR),
        *PALIGEMMA.prefixes,
    )
)


def parse_gemma3(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The model's sizes from the values of a `config.json`; transformers' defaults if absent.

    Reads the keys of old and of new versions of transformers. Raises ValueError with the key's
    name, as `parse_config` of PaliGemma.
    """
    keys = ConfigReader("", values)
    keys.expect("model_type", "gemma3")
    text = ConfigReader("text_config", keys.pop("text_config"))
    vision = read_siglip_tower(ConfigReader("vision_config", keys.pop("vision_config")))
    text_stop_tokens = text.token_ids("eos_token_id")
    text.boolean("tie_word_embeddings", True)
    image_tokens = keys.integer("mm_tokens_per_image", IMAGE_TOKENS)
    side, grid_side = isqrt(image_tokens), vision.resolution // vision.patch_size
    if side**2 != image_tokens or grid_side % side:
        raise keys.refuse(
            "mm_tokens_per_image",
            image_tokens,
            f", not the square of a divisor of {grid_side}, the patches of a side",
        )

    def token_id(name: str, default: int) -> int:
        # a text model's first token may be one of these, unlike sizes
        ids = keys.token_ids(f"{name}_token_index") or keys.token_ids(f"{name}_token_id")
        return ids[0] if ids else default

    marks = token_id("boi", BEGIN_OF_IMAGE), token_id("eoi", END_OF_IMAGE)
    config = PaliGemmaConfig(
        vision=vision,
        decoder=_read_decoder(text),
        image_token_id=token_id("image", IMAGE),
        stop_tokens=keys.token_ids("eos_token_id") or text_stop_tokens or (1,),
        tied=keys.boolean("tie_word_embeddings", True),
        pooled_side=side,
        image_marks=marks,
    )
    keys.finish()
    return config


def _read_decoder(keys: ConfigReader) -> DecoderConfig:
    keys.expect("model_type", "gemma3_text")
    keys.expect("hidden_activation", *TANH_GELU)
    keys.expect("attention_bias", False)
    keys.expect("use_bidirectional_attention", False)
    sizes = read_sizes(keys, DECODER, DECODER_DEFAULTS)
    depth = sizes["depth"]
    pattern = keys.integer(
        "sliding_window_pattern", keys.integer("_sliding_window_pattern", PATTERN)
    )
    default = [
        "full_attention" if (n + 1) % pattern == 0 else "sliding_attention" for n in range(depth)
    ]
    config = DecoderConfig(
        **sizes,
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
        query_pre_attn_scalar=keys.integer("query_pre_attn_scalar", 256),
        sliding_window=read_window(keys),
        sliding_layers=read_layer_kinds(keys, default),
        post_norms=True,
        qk_norm=True,
        first_position=0,
        causal_prompt=True,
    )
    config = replace(config, **_read_rope(keys))
    keys.finish()
    check_decoder(keys, config)
    return config


def _read_rope(keys: ConfigReader) -> dict[str, Any]:
    """The bases of both rotations, and the factor of the full layers' one.

    `rope_scaling` of older versions takes precedence over the entry of the full layers, as in
    transformers.
    """
    kinds = ConfigReader(keys.name("rope_parameters"), keys.pop("rope_parameters", {}))
    full, sliding, scaling = (
        ConfigReader(level.name(name), level.pop(name, {}))
        for level, name in (
            (kinds, "full_attention"),
            (kinds, "sliding_attention"),
            (keys, "rope_scaling"),
        )
    )
    theta = full.positive("rope_theta", keys.positive("rope_theta", ROPE_THETA))
    local = sliding.positive("rope_theta", keys.positive("rope_local_base_freq", LOCAL_ROPE_THETA))
    factor = _read_factor(full)
    if scaling.present:
        factor = _read_factor(scaling)
    if _read_factor(sliding) != 1:
        raise ValueError(f"{sliding.name('factor')} is not supported")
    for rope in (full, sliding, scaling, kinds):
        for key, value in rope.values.items():
            raise ValueError(f"{rope.name(key)} = {brief(value)} is not supported")
    return {"rope_theta": theta, "local_rope_theta": local, "rope_factor": factor}


def _read_factor(rope: ConfigReader) -> float:
    """The factor by which a rotation is slower; 1 without scaling."""
    older = rope.pop("type", "default")
    kind = rope.pop("rope_type", older)
    if kind not in ("default", "linear"):
        raise rope.refuse("rope_type", kind, "; supported: 'default' and 'linear'")
    factor = rope.positive("factor", 1.0)
    return factor if kind == "linear" else 1.0


GEMMA3 = Family("instruct", GEMMA3_NAMES, parse_gemma3)
