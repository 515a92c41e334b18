"""Reads `config.json` into the model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.json_file import read_json
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig


def read_config(folder: Path) -> PaliGemmaConfig:
    """The model's sizes; InvalidCheckpoint where `config.json` names one that is not supported."""
    try:
        return parse_config(read_json(folder / "config.json"))
    except ValueError as error:
        raise InvalidCheckpoint(
            f"{folder / 'config.json'}: {error}",
            hint="PaliGemma and PaliGemma 2 are read: name such a model, for example "
            "google/paligemma-3b-mix-224",
        ) from error


TANH_GELU = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
# Gemma's first releases say "gelu" and mean the tanh approximation (transformers#29402).
GEMMA_GELU = (*TANH_GELU, "gelu")


def parse_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The sizes that a checkpoint's `config.json` states or leaves to transformers' defaults.

    Raises ValueError, naming the key, for a missing size, a value out of range, sizes that
    contradict each other, and any setting that would change the answer and is not implemented.
    """
    keys = ConfigReader("", values)
    if keys.take("model_type") != "paligemma":
        raise ValueError(f"model_type is {brief(values.get('model_type'))}, not 'paligemma'")
    text = ConfigReader("text_config", keys.take("text_config"))
    stop_tokens = keys.ids("eos_token_id") + text.ids("eos_token_id")
    tied = _tied(keys, text)
    vision = _vision(ConfigReader("vision_config", keys.take("vision_config")))
    decoder = _decoder(text)
    projection = keys.take("projection_dim")
    if projection not in (None, decoder.width):
        raise ValueError(
            f"projection_dim is {brief(projection)}, not the decoder's width {decoder.width}"
        )
    keys.take("hidden_size")  # not the decoder's width in every checkpoint, and nothing uses it
    image_token_id = keys.integer("image_token_index", keys.take("image_token_id"), high=1 << 31)
    keys.close()
    return PaliGemmaConfig(
        vision=vision,
        decoder=decoder,
        image_token_id=image_token_id,
        stop_tokens=tuple(dict.fromkeys(stop_tokens)) or (1,),
        tied=tied,
    )


def _vision(keys: ConfigReader) -> VisionConfig:
    keys.only("model_type", "siglip_vision_model")
    keys.only("num_channels", 3)
    keys.only("hidden_act", *TANH_GELU)
    keys.only("vision_use_head", False)
    keys.take("projection_dim")  # the top level's holds
    config = VisionConfig(
        width=keys.integer("hidden_size", 768),
        depth=keys.integer("num_hidden_layers", 12, high=1000),
        mlp_dim=keys.integer("intermediate_size", 3072),
        num_heads=keys.integer("num_attention_heads", 12, high=4096),
        patch_size=keys.integer("patch_size", 16, high=1024),
        resolution=keys.integer("image_size", 224, high=8192),
        norm_eps=keys.positive("layer_norm_eps", 1e-6),
    )
    keys.close()
    if config.width % config.num_heads:
        raise ValueError(
            f"vision_config: {config.num_heads} heads do not divide the width {config.width}"
        )
    if config.resolution % config.patch_size:
        raise ValueError(
            f"vision_config: patches of {config.patch_size} do not divide the picture's side "
            f"{config.resolution}"
        )
    return config


# What transformers takes for the sizes that a decoder's configuration leaves out.
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


def _decoder(keys: ConfigReader) -> DecoderConfig:
    generation = keys.take("model_type", "gemma")
    if not isinstance(generation, str) or generation not in DEFAULTS:
        raise ValueError(
            f"text_config.model_type is {brief(generation)}; supported: 'gemma' and 'gemma2', "
            "PaliGemma's first and second generation"
        )
    default = DEFAULTS[generation]
    keys.only("hidden_act", *GEMMA_GELU)
    keys.only("hidden_activation", *TANH_GELU)
    keys.only("attention_bias", False)
    keys.only("use_bidirectional_attention", True)
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
        **(_second_generation(keys, depth) if generation == "gemma2" else {}),
    )
    keys.close()
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"text_config: {config.num_kv_heads} key/value heads do not divide "
            f"{config.num_heads} heads"
        )
    if config.head_dim % 2:
        raise ValueError(f"text_config.head_dim is {config.head_dim}; rotation needs an even one")
    return config


def _second_generation(keys: ConfigReader, depth: int) -> dict[str, Any]:
    """What Gemma 2 has on top; a null there means that the checkpoint goes without it."""
    window = keys.positive_or_none("sliding_window", 4096)
    if window is not None and not window.is_integer():
        raise ValueError(f"{keys.name('sliding_window')} is {window}, not a whole number")
    return {
        "query_pre_attn_scalar": keys.integer("query_pre_attn_scalar", 256),
        "attn_softcap": keys.positive_or_none("attn_logit_softcapping", 50.0),
        "final_softcap": keys.positive_or_none("final_logit_softcapping", 30.0),
        "sliding_window": None if window is None else int(window),
        "sliding_layers": _window_layers(keys, depth),
        "post_norms": True,
    }


def _window_layers(keys: ConfigReader, depth: int) -> tuple[bool, ...]:
    """Which layers have the window: as listed, or every other one from the first."""
    kinds = {"sliding_attention": True, "full_attention": False}
    listed = keys.take("layer_types", ["sliding_attention", "full_attention"] * depth)
    if not isinstance(listed, list) or any(kind not in kinds for kind in map(str, listed)):
        raise ValueError(
            f"{keys.name('layer_types')} is {brief(listed)}, not a list of {', '.join(kinds)}"
        )
    if "layer_types" in keys.given and len(listed) != depth:
        raise ValueError(
            f"{keys.name('layer_types')} names {len(listed)} layers of num_hidden_layers {depth}"
        )
    return tuple(kinds[kind] for kind in listed[:depth])


def _rope_theta(keys: ConfigReader) -> float:
    """The base of the rotation, which stands alone or under `rope_parameters`."""
    rope = ConfigReader(keys.name("rope_parameters"), keys.take("rope_parameters", {}))
    keys.only("rope_scaling")
    rope.only("rope_type", "default")
    theta = rope.positive("rope_theta", keys.positive("rope_theta", 10_000.0))
    rope.close()
    return theta


def _tied(keys: ConfigReader, text: ConfigReader) -> bool:
    """What the top level says; the decoder's own word counts for nothing in transformers either."""
    text.claim("tie_word_embeddings", True)
    return keys.claim("tie_word_embeddings", True)
