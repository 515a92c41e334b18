"""Reads the `text_config` of a `config.json`: a Gemma or Gemma 2 decoder."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.model.config import DecoderConfig

TANH_GELU = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
# Gemma's first releases say "gelu" and mean the tanh approximation (transformers#29402).
GEMMA_GELU = (*TANH_GELU, "gelu")
# The sizes that transformers assumes where the configuration has none.
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma": {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "intermediate_size": 24_576,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "gemma2": {
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "intermediate_size": 9216,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}


def read_decoder(keys: ConfigReader) -> DecoderConfig:
    """The sizes of a Gemma or Gemma 2 decoder; ValueError names a key that is not supported."""
    generation = keys.pop("model_type", "gemma")
    if not isinstance(generation, str) or generation not in DEFAULTS:
        raise ValueError(
            f"text_config.model_type is {brief(generation)}; supported: 'gemma' and 'gemma2', "
            "the decoders of PaliGemma and PaliGemma 2"
        )
    default = DEFAULTS[generation]
    keys.expect("hidden_act", *GEMMA_GELU)
    keys.expect("hidden_activation", *TANH_GELU)
    keys.expect("attention_bias", False)
    keys.expect("use_bidirectional_attention", True)
    depth = keys.integer("num_hidden_layers", default["num_hidden_layers"], high=1000)
    config = DecoderConfig(
        width=keys.integer("hidden_size", default["hidden_size"]),
        depth=depth,
        mlp_dim=keys.integer("intermediate_size", default["intermediate_size"]),
        num_heads=keys.integer("num_attention_heads", default["num_attention_heads"], high=4096),
        num_kv_heads=keys.integer("num_key_value_heads", default["num_key_value_heads"], high=4096),
        head_dim=keys.integer("head_dim", 256, high=4096),
        vocab_size=keys.integer("vocab_size", 256_000, high=1 << 24),
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys),
        max_positions=keys.integer("max_position_embeddings", 8192, high=1 << 24),
        **(_gemma2_fields(keys, depth) if generation == "gemma2" else {}),
    )
    keys.finish()
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"text_config: {config.num_kv_heads} key/value heads do not divide "
            f"{config.num_heads} heads"
        )
    if config.head_dim % 2:
        raise ValueError(f"text_config.head_dim is {config.head_dim}, not an even number")
    return config


def _gemma2_fields(keys: ConfigReader, depth: int) -> dict[str, Any]:
    """The fields of Gemma 2 only; null disables the window or a softcap."""
    window = keys.positive_or_none("sliding_window", 4096)
    if window is not None and not window.is_integer():
        raise ValueError(f"{keys.name('sliding_window')} is {window}, not a whole number")
    if window == 1:  # transformers' cache keeps the last window - 1 positions: [-0:] is all of them
        raise ValueError(f"{keys.name('sliding_window')} is 1; supported: 2 or more, and null")
    return {
        "query_pre_attn_scalar": keys.integer("query_pre_attn_scalar", 256),
        "attn_softcap": keys.positive_or_none("attn_logit_softcapping", 50.0),
        "final_softcap": keys.positive_or_none("final_logit_softcapping", 30.0),
        "sliding_window": None if window is None else int(window),
        "sliding_layers": _sliding_layers(keys, depth),
        "post_norms": True,
    }


def _sliding_layers(keys: ConfigReader, depth: int) -> tuple[bool, ...]:
    """Which layers use the sliding window: those of `layer_types`, by default every other one."""
    kinds = {"sliding_attention": True, "full_attention": False}
    layer_types = keys.pop("layer_types", ["sliding_attention", "full_attention"] * depth)
    if not isinstance(layer_types, list) or any(
        kind not in kinds for kind in map(str, layer_types)
    ):
        raise ValueError(
            f"{keys.name('layer_types')} is {brief(layer_types)}, not a list of {', '.join(kinds)}"
        )
    if "layer_types" in keys.given and len(layer_types) != depth:
        raise ValueError(f"{keys.name('layer_types')} has {len(layer_types)} layers, not {depth}")
    return tuple(kinds[kind] for kind in layer_types[:depth])


def _rope_theta(keys: ConfigReader) -> float:
    """The base of the rotary embedding: `rope_parameters.rope_theta`, else `rope_theta`."""
    rope = ConfigReader(keys.name("rope_parameters"), keys.pop("rope_parameters", {}))
    keys.expect("rope_scaling")
    rope.expect("rope_type", "default")
    theta = rope.positive("rope_theta", keys.positive("rope_theta", 10_000.0))
    rope.finish()
    return theta
