"""The sizes of a PaliGemma, read from a checkpoint's `config.json`; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

from pgcli.model.keys import Keys


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
    """The decoder's sizes, and the five things that only Gemma's second generation has.

    `query_scalar` to the power of -1/2 scales attention's scores, None stands for `head_dim`.
    `attention_cap` and `final_cap` bound scores and logits softly. In the layers that
    `window_layers` marks a generated token sees the last `window` positions only, itself counted.
    `post_norms` says whether attention's and the MLP's outputs are normalised too.
    """

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
    query_scalar: int | None = None
    attention_cap: float | None = None
    final_cap: float | None = None
    window: int | None = None
    window_layers: tuple[bool, ...] = ()
    post_norms: bool = False

    @property
    def query_scale(self) -> float:
        scale: float = (self.query_scalar or self.head_dim) ** -0.5
        return scale

    def is_windowed(self, layer: int) -> bool:
        """Whether the layer's generated tokens see a window only."""
        return self.window is not None and bool(self.window_layers) and self.window_layers[layer]


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

    @property
    def most_new_tokens(self) -> int:
        """How long an answer may be beside a picture and the shortest prompt: bos and newline."""
        return self.decoder.max_positions - self.image_tokens - 2


TANH_GELU = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
# Gemma's first releases say "gelu" and mean the tanh approximation (transformers#29402).
GEMMA_GELU = (*TANH_GELU, "gelu")


def read_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The sizes that a checkpoint's `config.json` states or leaves to transformers' defaults.

    Raises ValueError, naming the key, for a missing size, a value out of range, sizes that
    contradict each other, and any setting that would change the answer and is not implemented.
    """
    keys = Keys("", values)
    if keys.take("model_type") != "paligemma":
        raise ValueError(f"model_type is {brief(values.get('model_type'))}, not 'paligemma'")
    text = Keys("text_config", keys.take("text_config"))
    stop_tokens = keys.ids("eos_token_id") + text.ids("eos_token_id")
    tied = _tied(keys, text)
    vision = _vision(Keys("vision_config", keys.take("vision_config")))
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


def _vision(keys: Keys) -> VisionConfig:
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


def _decoder(keys: Keys) -> DecoderConfig:
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


def _second_generation(keys: Keys, depth: int) -> dict[str, Any]:
    """What Gemma 2 has on top; a null there means that the checkpoint goes without it."""
    window = keys.positive_or_none("sliding_window", 4096)
    if window is not None and not window.is_integer():
        raise ValueError(f"{keys.name('sliding_window')} is {window}, not a whole number")
    return {
        "query_scalar": keys.integer("query_pre_attn_scalar", 256),
        "attention_cap": keys.positive_or_none("attn_logit_softcapping", 50.0),
        "final_cap": keys.positive_or_none("final_logit_softcapping", 30.0),
        "window": None if window is None else int(window),
        "window_layers": _window_layers(keys, depth),
        "post_norms": True,
    }


def _window_layers(keys: Keys, depth: int) -> tuple[bool, ...]:
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


def _rope_theta(keys: Keys) -> float:
    """The base of the rotation, which stands alone or under `rope_parameters`."""
    rope = Keys(keys.name("rope_parameters"), keys.take("rope_parameters", {}))
    keys.only("rope_scaling")
    rope.only("rope_type", "default")
    theta = rope.positive("rope_theta", keys.positive("rope_theta", 10_000.0))
    rope.close()
    return theta


def _tied(keys: Keys, text: Keys) -> bool:
    """What the top level says; the decoder's own word counts for nothing in transformers either."""
    text.claim("tie_word_embeddings", True)
    return keys.claim("tie_word_embeddings", True)
