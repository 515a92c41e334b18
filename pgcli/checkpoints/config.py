"""Reads the sizes and stop tokens of PaliGemma: `config.json` and `generation_config.json`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.files import read_json
from pgcli.checkpoints.weight_files import CONFIG, GENERATION
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig

TANH_GELU = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
# Gemma's first releases say "gelu" and mean the tanh approximation (transformers#29402).
GEMMA_GELU = (*TANH_GELU, "gelu")
# What transformers assumes where the configuration has no value, for each generation of Gemma.
DECODER_DEFAULTS: Mapping[str, Mapping[str, int]] = {
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
#: Settings that change transformers' greedy answers, unless they are null or have this value.
NEUTRAL: Mapping[str, Any] = {
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "constraints": None,
    "diversity_penalty": 0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "penalty_alpha": None,
    "repetition_penalty": 1,
    "sequence_bias": None,
    "stop_strings": None,
    "suppress_tokens": [],
    "token_healing": False,
    "watermarking_config": None,
}
#: Of these the tokens that no answer contains have no effect.
SUPPRESSED = ("begin_suppress_tokens", "suppress_tokens")


def read_config(folder: Path) -> PaliGemmaConfig:
    """The model's sizes from `config.json`, and the stop tokens of `generation_config.json`.

    If the latter names none, they are those of `config.json`. Raises InvalidCheckpoint if a setting
    is not supported. Warns of settings of `generation_config.json` that are not followed.
    """
    try:
        config = parse_config(read_json(folder / CONFIG))
    except ValueError as error:
        raise InvalidCheckpoint(
            f"{folder / CONFIG}: {error}",
            hint="supported are PaliGemma and PaliGemma 2, for example google/paligemma-3b-mix-224",
        ) from error
    try:
        stop_tokens = ConfigReader(GENERATION, _generation(folder)).token_ids("eos_token_id")
    except ValueError as error:
        raise InvalidCheckpoint(f"{folder / GENERATION}: {error}") from error
    if settings := settings_not_followed(folder, never_generated={config.image_token_id}):
        warn_not_followed(settings)
    return replace(config, stop_tokens=stop_tokens or config.stop_tokens)


@cache  # one run reads the file several times
def warn_not_followed(settings: tuple[str, ...]) -> None:
    """Warn of settings of a checkpoint that are not followed."""
    warnings.warn(
        f"{GENERATION}: transformers' greedy answers follow {', '.join(settings)}, "
        "and pgcli's do not",
        stacklevel=1,
    )


def settings_not_followed(folder: Path, *, never_generated: Collection[int]) -> tuple[str, ...]:
    """`name = value` of each setting that changes transformers' greedy answers, but not pgcli's.

    The tokens that are `never_generated` may be suppressed.
    """
    settings = []
    for name, value in _generation(folder).items():
        if name in SUPPRESSED and isinstance(value, list):
            value = [token for token in value if token not in never_generated]
        if value is not None and value != NEUTRAL.get(name, value):
            settings.append(f"{name} = {brief(value)}")
    return tuple(settings)


def _generation(folder: Path) -> dict[str, Any]:
    file = folder / GENERATION
    return read_json(file) if file.exists() else {}


def parse_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The model's sizes from the values of a `config.json`; transformers' defaults if absent.

    Raises ValueError with the key's name for a missing size, a value out of range, sizes that
    contradict each other, and a setting that changes answers and is not supported. Stop tokens are
    those of the top level, else the decoder's.
    """
    keys = ConfigReader("", values)
    if keys.pop("model_type") != "paligemma":
        raise ValueError(f"model_type is {brief(values.get('model_type'))}, not 'paligemma'")
    text = ConfigReader("text_config", keys.pop("text_config"))
    vision = _read_vision(ConfigReader("vision_config", keys.pop("vision_config")))
    text_stop_tokens = text.token_ids("eos_token_id")
    text.boolean("tie_word_embeddings", True)  # transformers ignores the decoder's
    decoder = _read_decoder(text)
    projection = keys.pop("projection_dim")
    if projection not in (None, decoder.width):
        raise ValueError(
            f"projection_dim is {brief(projection)}, not the decoder's width {decoder.width}"
        )
    config = PaliGemmaConfig(
        vision=vision,
        decoder=decoder,
        image_token_id=keys.integer(
            "image_token_index", keys.pop("image_token_id"), high=(1 << 31) - 1
        ),
        stop_tokens=keys.token_ids("eos_token_id") or text_stop_tokens or (1,),
        tied=keys.boolean("tie_word_embeddings", True),
    )
    keys.finish()
    if config.max_answer_tokens < 1:
        raise ValueError(
            f"max_position_embeddings is {decoder.max_positions}, which leaves no room for a "
            f"prompt and an answer after the {config.image_tokens} tokens of an image"
        )
    return config


def _read_vision(keys: ConfigReader) -> VisionConfig:
    keys.expect("model_type", "siglip_vision_model")
    keys.expect("num_channels", 3)
    keys.expect("hidden_act", *TANH_GELU)
    keys.expect("vision_use_head", False)
    config = VisionConfig(
        width=keys.integer("hidden_size", 768),
        depth=keys.integer("num_hidden_layers", 12, high=1000),
        mlp_dim=keys.integer("intermediate_size", 3072),
        num_heads=keys.integer("num_attention_heads", 12, high=4096),
        patch_size=keys.integer("patch_size", 16, high=1024),
        resolution=keys.integer("image_size", 224, high=8192),
        norm_eps=keys.positive("layer_norm_eps", 1e-6),
    )
    keys.finish()
    if config.width % config.num_heads:
        raise ValueError(
            f"vision_config: {config.num_heads} heads do not divide the width {config.width}"
        )
    if config.resolution % config.patch_size:
        raise ValueError(
            f"vision_config: patches of {config.patch_size} do not divide the image size "
            f"{config.resolution}"
        )
    return config


def _read_decoder(keys: ConfigReader) -> DecoderConfig:
    """A Gemma or Gemma 2 decoder."""
    generation = keys.pop("model_type", "gemma")
    if not isinstance(generation, str) or generation not in DECODER_DEFAULTS:
        raise ValueError(
            f"text_config.model_type is {brief(generation)}; supported: 'gemma' and 'gemma2', "
            "the decoders of PaliGemma and PaliGemma 2"
        )
    default = DECODER_DEFAULTS[generation]
    keys.expect("hidden_act", *GEMMA_GELU)
    keys.expect("hidden_activation", *TANH_GELU)
    keys.expect("attention_bias", False)
    keys.expect("use_bidirectional_attention", True)
    config = DecoderConfig(
        width=keys.integer("hidden_size", default["hidden_size"]),
        depth=keys.integer("num_hidden_layers", default["num_hidden_layers"], high=1000),
        mlp_dim=keys.integer("intermediate_size", default["intermediate_size"]),
        num_heads=keys.integer("num_attention_heads", default["num_attention_heads"], high=4096),
        num_kv_heads=keys.integer("num_key_value_heads", default["num_key_value_heads"], high=4096),
        head_dim=keys.integer("head_dim", 256, high=4096),
        vocab_size=keys.integer("vocab_size", 256_000, high=1 << 24),
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys),
        max_positions=keys.integer("max_position_embeddings", 8192, high=1 << 24),
    )
    if generation == "gemma2":
        config = replace(config, **_gemma2_fields(keys, config.depth))
    keys.finish()
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"text_config: {config.num_kv_heads} key/value heads do not divide "
            f"{config.num_heads} heads"
        )
    if config.head_dim % 2:
        raise keys.refuse("head_dim", config.head_dim, ", not an even number")
    return config


def _rope_theta(keys: ConfigReader) -> float:
    """The base of the rotary embedding: `rope_parameters.rope_theta`, else `rope_theta`."""
    rope = ConfigReader(keys.name("rope_parameters"), keys.pop("rope_parameters", {}))
    rope.expect("rope_type", "default")
    theta = rope.positive("rope_theta", keys.positive("rope_theta", 10_000.0))
    for key in rope.given - {"rope_type", "rope_theta"}:
        raise ValueError(f"{rope.name(key)} = {brief(rope.values[key])} is not supported")
    return theta


def _gemma2_fields(keys: ConfigReader, depth: int) -> dict[str, Any]:
    """The fields of Gemma 2 only; null disables the window or a softcap."""

    def positive_or_none(key: str, default: float) -> float | None:
        return None if keys.values.get(key, default) is None else keys.positive(key, default)

    window = positive_or_none("sliding_window", 4096)
    # transformers' cache keeps the last window - 1 positions, and [-0:] is all of them
    if window is not None and (window < 2 or not window.is_integer()):
        raise keys.refuse("sliding_window", window, "; supported: whole numbers above 1, and null")
    kinds = {"sliding_attention": True, "full_attention": False}
    default = ["sliding_attention", "full_attention"] * depth
    layer_types = keys.pop("layer_types", default[:depth])
    if not isinstance(layer_types, list) or len(layer_types) != depth:
        raise keys.refuse("layer_types", layer_types, f", not a list of {depth} layers")
    if any(kind not in kinds for kind in map(str, layer_types)):
        raise keys.refuse("layer_types", layer_types, f", not a list of {', '.join(kinds)}")
    return {
        "query_pre_attn_scalar": keys.integer("query_pre_attn_scalar", 256),
        "attn_softcap": positive_or_none("attn_logit_softcapping", 50.0),
        "final_softcap": positive_or_none("final_logit_softcapping", 30.0),
        "sliding_window": None if window is None else int(window),
        "sliding_layers": tuple(kinds[kind] for kind in layer_types),
        "post_norms": True,
    }
