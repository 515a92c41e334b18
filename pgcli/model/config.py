"""The sizes of a PaliGemma, read from a checkpoint's `config.json`; no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any


@dataclass(frozen=True, slots=True)
class VisionConfig:
    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int
    resolution: int
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def num_patches(self) -> int:
        return (self.resolution // self.patch_size) ** 2


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class PaliGemmaConfig:
    """Everything the weights' shapes follow from, and the ids that generation needs.

    `tied` says whether the head shares the embedding's weights; `stop_tokens` end an answer.
    """

    vision: VisionConfig
    decoder: DecoderConfig
    image_token: int
    stop_tokens: tuple[int, ...] = (1,)
    tied: bool = True

    @property
    def image_tokens(self) -> int:
        """How many slots one picture takes."""
        return self.vision.num_patches


# Keys that no answer depends on: bookkeeping, training, and code paths that are ours to choose.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _name_or_path
    _vocab_size architectures attention_dropout auto_map bos_token_id cache_implementation
    chunk_size_feed_forward dtype gradient_checkpointing id2label ignore_index initializer_factor
    initializer_range is_encoder_decoder label2id num_image_tokens num_positions
    output_attentions output_hidden_states pad_token_id problem_type projector_hidden_act
    return_dict torch_dtype transformers_version use_cache vocab_size
    """.split()
)
TANH_GELU = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
# Gemma's first releases say "gelu" and mean the tanh approximation (transformers#29402).
GEMMA_GELU = (*TANH_GELU, "gelu")


class _Keys:
    """One level of the configuration: each key is read once, and what is left must be harmless."""

    def __init__(self, level: str, values: Any):
        if not isinstance(values, Mapping):
            problem = "missing" if values is None else "not an object"
            raise ValueError(f"{level or 'config.json'} is {problem}")
        self.level = level
        self.values = dict(values)

    def name(self, key: str) -> str:
        return f"{self.level}.{key}" if self.level else key

    def take(self, key: str, default: Any = None) -> Any:
        value = self.values.pop(key, None)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, high: int = 1 << 20) -> int:
        value = self.take(key, default)
        if value is None:
            raise ValueError(f"{self.name(key)} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise ValueError(
                f"{self.name(key)} is {brief(value)}, not a whole number from 1 to {high}"
            )
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name(key)} is {brief(value)}, not a number")
        if not 0 < value <= sys.float_info.max:  # NaN is neither
            raise ValueError(f"{self.name(key)} is {brief(value)}, not a positive number")
        return float(value)

    def claim(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.name(key)} is {brief(value)}, not true or false")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Accept the key where it is absent, null or one of the allowed values."""
        value = self.take(key)
        if value is not None and value not in allowed:
            supported = ", ".join(map(repr, allowed)) or "none"
            raise ValueError(f"{self.name(key)} is {brief(value)}; supported: {supported}")

    def close(self) -> None:
        """Refuse, by name, a setting that this code does not know."""
        for key, value in self.values.items():
            if key not in HARMLESS and value is not None:
                raise ValueError(
                    f"{self.name(key)} = {brief(value)} is a setting unknown to this code"
                )


def read_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The sizes that a checkpoint's `config.json` states or leaves to transformers' defaults.

    Raises ValueError, naming the key, for a missing size, a value out of range, sizes that
    contradict each other, and any setting that would change the answer and is not implemented.
    """
    keys = _Keys("", values)
    if keys.take("model_type") != "paligemma":
        raise ValueError(f"model_type is {brief(values.get('model_type'))}, not 'paligemma'")
    text = _Keys("text_config", keys.take("text_config"))
    stop_tokens = _ids(keys, "eos_token_id") + _ids(text, "eos_token_id")
    tied = _tied(keys, text)
    vision = _vision(_Keys("vision_config", keys.take("vision_config")))
    decoder = _decoder(text)
    projection = keys.take("projection_dim")
    if projection not in (None, decoder.width):
        raise ValueError(
            f"projection_dim is {brief(projection)}, not the decoder's width {decoder.width}"
        )
    keys.take("hidden_size")  # not the decoder's width in every checkpoint, and nothing uses it
    image_token = keys.integer("image_token_index", keys.take("image_token_id"), high=1 << 31)
    keys.close()
    return PaliGemmaConfig(
        vision=vision,
        decoder=decoder,
        image_token=image_token,
        stop_tokens=tuple(dict.fromkeys(stop_tokens)) or (1,),
        tied=tied,
    )


def _vision(keys: _Keys) -> VisionConfig:
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


def _decoder(keys: _Keys) -> DecoderConfig:
    generation = keys.take("model_type", "gemma")
    if generation != "gemma":
        raise ValueError(
            f"text_config.model_type is {brief(generation)}; supported: 'gemma' (PaliGemma's first "
            "generation)"
        )
    keys.only("hidden_act", *GEMMA_GELU)
    keys.only("hidden_activation", *TANH_GELU)
    keys.only("attention_bias", False)
    keys.only("use_bidirectional_attention", True)
    vocab_size = keys.integer("vocab_size", 256_000, high=1 << 24)
    config = DecoderConfig(
        width=keys.integer("hidden_size", 3072),
        depth=keys.integer("num_hidden_layers", 28, high=1000),
        mlp_dim=keys.integer("intermediate_size", 24_576),
        num_heads=keys.integer("num_attention_heads", 16, high=4096),
        num_kv_heads=keys.integer("num_key_value_heads", 16, high=4096),
        head_dim=keys.integer("head_dim", 256, high=4096),
        vocab_size=vocab_size,
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys),
        max_positions=keys.integer("max_position_embeddings", 8192, high=1 << 24),
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


def _rope_theta(keys: _Keys) -> float:
    """The base of the rotation, which stands alone or under `rope_parameters`."""
    rope = _Keys(keys.name("rope_parameters"), keys.take("rope_parameters", {}))
    keys.only("rope_scaling")
    rope.only("rope_type", "default")
    theta = rope.positive("rope_theta", keys.positive("rope_theta", 10_000.0))
    rope.close()
    return theta


def _tied(keys: _Keys, text: _Keys) -> bool:
    """What the top level says; the decoder's own word counts for nothing in transformers either."""
    text.claim("tie_word_embeddings", True)
    return keys.claim("tie_word_embeddings", True)


def _ids(keys: _Keys, key: str) -> tuple[int, ...]:
    value = keys.take(key, [])
    ids = value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 31:
            raise ValueError(
                f"{keys.name(key)} is {brief(value)}, not a token id or a list of them"
            )
    return tuple(ids)
