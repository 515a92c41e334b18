"""Reads `config.json` into the model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.decoder_config import TANH_GELU, read_decoder
from pgcli.checkpoints.files import read_json
from pgcli.checkpoints.generation_config import (
    read_stop_tokens,
    settings_not_followed,
    warn_not_followed,
)
from pgcli.checkpoints.known_keys import TEXT_KEYS, TOP_KEYS, VISION_KEYS
from pgcli.checkpoints.weight_files import GENERATION
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import PaliGemmaConfig, VisionConfig


def read_config(folder: Path) -> PaliGemmaConfig:
    """The model's sizes from `config.json`, and the stop tokens of `generation_config.json`.

    If the latter names none, they are those of `config.json`. Raises InvalidCheckpoint if a setting
    is not supported. Warns of settings of `generation_config.json` that are not followed.
    """
    try:
        config = parse_config(read_json(folder / "config.json"))
    except ValueError as error:
        raise InvalidCheckpoint(
            f"{folder / 'config.json'}: {error}",
            hint="supported are PaliGemma and PaliGemma 2, for example google/paligemma-3b-mix-224",
        ) from error
    try:
        stop_tokens = read_stop_tokens(folder)
    except ValueError as error:
        raise InvalidCheckpoint(f"{folder / GENERATION}: {error}") from error
    if settings := settings_not_followed(folder, never_generated={config.image_token_id}):
        warn_not_followed(settings)
    return replace(config, stop_tokens=stop_tokens or config.stop_tokens)


def parse_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The model's sizes from the values of a `config.json`; transformers' defaults if absent.

    Raises ValueError with the key's name for a missing size, a value out of range, sizes that
    contradict each other, and a setting that changes answers and is not supported. Warns of keys
    that are unknown and ignored. Stop tokens are those of the top level, else the decoder's.
    """
    keys = ConfigReader("", values, TOP_KEYS)
    if keys.pop("model_type") != "paligemma":
        raise ValueError(f"model_type is {brief(values.get('model_type'))}, not 'paligemma'")
    text = ConfigReader("text_config", keys.pop("text_config"), TEXT_KEYS)
    stop_tokens = keys.token_ids("eos_token_id"), text.token_ids("eos_token_id")
    tied = _tied(keys, text)
    vision = _vision(ConfigReader("vision_config", keys.pop("vision_config"), VISION_KEYS))
    decoder = read_decoder(text)
    projection = keys.pop("projection_dim")
    if projection not in (None, decoder.width):
        raise ValueError(
            f"projection_dim is {brief(projection)}, not the decoder's width {decoder.width}"
        )
    keys.pop("hidden_size")  # unused, and not the decoder's width in every checkpoint
    image_token_id = keys.integer("image_token_index", keys.pop("image_token_id"), high=1 << 31)
    keys.finish()
    config = PaliGemmaConfig(
        vision=vision,
        decoder=decoder,
        image_token_id=image_token_id,
        stop_tokens=tuple(dict.fromkeys(stop_tokens[0] or stop_tokens[1])) or (1,),
        tied=tied,
    )
    if config.max_answer_tokens < 1:
        raise ValueError(
            f"max_position_embeddings is {decoder.max_positions}, which leaves no room for a "
            f"prompt and an answer after the {config.image_tokens} tokens of an image"
        )
    return config


def _tied(keys: ConfigReader, text: ConfigReader) -> bool:
    """`tie_word_embeddings` of the top level; transformers ignores the decoder's too."""
    text.boolean("tie_word_embeddings", True)
    return keys.boolean("tie_word_embeddings", True)


def _vision(keys: ConfigReader) -> VisionConfig:
    keys.expect("model_type", "siglip_vision_model")
    keys.expect("num_channels", 3)
    keys.expect("hidden_act", *TANH_GELU)
    keys.expect("vision_use_head", False)
    keys.pop("projection_dim")  # unused; the one at the top level is checked
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
