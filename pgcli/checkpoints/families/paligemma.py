"""PaliGemma and PaliGemma 2: SigLIP's vision tower before a decoder of Gemma or Gemma 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.families import (
    LAYERS,
    ConfigReader,
    Family,
    Pairs,
    SizeKey,
    TensorNames,
    read_sizes,
    write_sizes,
)
from pgcli.checkpoints.families.encoders import SIGLIP_DEFAULTS, VISION
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig

TANH_GELU = ("gelu_pytorch_tanh", "gelu_fast", "gelu_new")
# Gemma's first releases say "gelu" and mean the tanh approximation (transformers#29402).
GEMMA_GELU = (*TANH_GELU, "gelu")
DECODER = (
    *LAYERS,
    SizeKey("num_kv_heads", "num_key_value_heads", 4096),
    SizeKey("head_dim", "head_dim", 4096),
    SizeKey("vocab_size", "vocab_size", 1 << 24),
    SizeKey("max_positions", "max_position_embeddings", 1 << 24),
)
GEMMA = {"head_dim": 256, "vocab_size": 256_000, "max_positions": 8192}
#: transformers' defaults for each generation of Gemma.
DECODER_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma": GEMMA
    | {"width": 3072, "depth": 28, "mlp_dim": 24_576, "num_heads": 16, "num_kv_heads": 16},
    "gemma2": GEMMA
    | {"width": 2304, "depth": 26, "mlp_dim": 9216, "num_heads": 8, "num_kv_heads": 4},
}
#: The types of layers by name, and whether they have a sliding window.
LAYER_KINDS = {"sliding_attention": True, "full_attention": False}

# The names of tensors: the published ones, and the module names of current transformers, which PEFT
# writes.

_PUBLISHED: Pairs = (
    ("vision_tower.vision_model.encoder.layers.", "vision.layers."),
    ("vision_tower.vision_model.", "vision."),
    ("multi_modal_projector.linear.", "projector."),
    ("language_model.lm_head.", "decoder.lm_head."),
    ("language_model.model.", "decoder."),
)
_MODULES: Pairs = (
    ("model.vision_tower.encoder.layers.", "vision.layers."),
    ("model.vision_tower.vision_model.encoder.layers.", "vision.layers."),
    ("model.vision_tower.vision_model.", "vision."),
    ("model.vision_tower.", "vision."),
    ("model.multi_modal_projector.linear.", "projector."),
    ("lm_head.", "decoder.lm_head."),
    ("model.language_model.", "decoder."),
)
_WITHOUT_HEAD: Pairs = (
    ("vision_tower.encoder.layers.", "vision.layers."),
    ("vision_tower.", "vision."),
    ("language_model.", "decoder."),
)
NAMES = TensorNames((*_PUBLISHED, *_MODULES, *_WITHOUT_HEAD))
NAMES_OF_MODULES = TensorNames((*_MODULES, *_PUBLISHED, *_WITHOUT_HEAD))
#: The vision tower of a PaliGemma checkpoint.
VISION_TENSORS = replace(
    NAMES, unused=r"^(model\.)?(multi_modal_projector|language_model)\.|^lm_head\."
)


def parse_config(values: Mapping[str, Any]) -> PaliGemmaConfig:
    """The model's sizes from the values of a `config.json`; transformers' defaults if absent.

    Raises ValueError with the key's name for a missing size, a value out of range, sizes that
    contradict each other, and a setting that changes answers and is not supported. Stop tokens come
    from the top level, else from the decoder.
    """
    keys = ConfigReader("", values)
    if keys.pop("model_type") != "paligemma":
        raise ValueError(f"model_type is {brief(values.get('model_type'))}, not 'paligemma'")
    text = ConfigReader("text_config", keys.pop("text_config"))
    vision = read_siglip_tower(ConfigReader("vision_config", keys.pop("vision_config")))
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


def read_siglip_tower(keys: ConfigReader) -> VisionConfig:
    """The vision tower of PaliGemma and of Gemma 3."""
    keys.expect("model_type", "siglip_vision_model")
    keys.expect("num_channels", 3)
    keys.expect("hidden_act", *TANH_GELU)
    keys.expect("vision_use_head", False)
    config = VisionConfig(
        **read_sizes(keys, VISION, SIGLIP_DEFAULTS.sizes),
        norm_eps=keys.positive("layer_norm_eps", SIGLIP_DEFAULTS.norm_eps),
    )
    keys.finish()
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
    keys.expect("hidden_act", *GEMMA_GELU)
    keys.expect("hidden_activation", *TANH_GELU)
    keys.expect("attention_bias", False)
    keys.expect("use_bidirectional_attention", True)
    config = DecoderConfig(
        **read_sizes(keys, DECODER, DECODER_DEFAULTS[generation]),
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys),
    )
    if generation == "gemma2":
        config = replace(config, **_gemma2_fields(keys, config.depth))
    keys.finish()
    check_decoder(keys, config)
    return config


def check_decoder(keys: ConfigReader, config: DecoderConfig) -> None:
    """Raise ValueError for heads that groups or halves do not divide."""
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"text_config: {config.num_kv_heads} key/value heads do not divide "
            f"{config.num_heads} heads"
        )
    if config.head_dim % 2:
        raise keys.refuse("head_dim", config.head_dim, ", not an even number")


def _rope_theta(keys: ConfigReader) -> float:
    """The base of the rotary embedding: `rope_parameters.rope_theta`, else `rope_theta`."""
    rope = ConfigReader(keys.name("rope_parameters"), keys.pop("rope_parameters", {}))
    rope.expect("rope_type", "default")
    theta = rope.positive("rope_theta", keys.positive("rope_theta", 10_000.0))
    for key in rope.present - {"rope_type", "rope_theta"}:
        raise ValueError(f"{rope.name(key)} = {brief(rope.values[key])} is not supported")
    return theta


def _gemma2_fields(keys: ConfigReader, depth: int) -> dict[str, Any]:
    """The fields of Gemma 2 only; null disables the window or a softcap."""

    default = ["sliding_attention", "full_attention"] * depth
    return {
        "query_pre_attn_scalar": keys.integer("query_pre_attn_scalar", 256),
        "attn_softcap": positive_or_none(keys, "attn_logit_softcapping", 50.0),
        "final_softcap": positive_or_none(keys, "final_logit_softcapping", 30.0),
        "sliding_window": read_window(keys),
        "sliding_layers": read_layer_kinds(keys, default[:depth]),
        "post_norms": True,
    }


def positive_or_none(keys: ConfigReader, key: str, default: float) -> float | None:
    """A positive number, or None for null."""
    return None if keys.values.get(key, default) is None else keys.positive(key, default)


def read_window(keys: ConfigReader) -> int | None:
    """The sliding window; None if null disables it."""
    window = positive_or_none(keys, "sliding_window", 4096)
    # transformers' cache keeps the last window - 1 positions, and [-0:] is all of them
    if window is not None and (window < 2 or not window.is_integer()):
        raise keys.refuse("sliding_window", window, "; supported: whole numbers above 1, and null")
    return None if window is None else int(window)


def read_layer_kinds(keys: ConfigReader, default: list[str]) -> tuple[bool, ...]:
    """Whether each layer has the sliding window."""
    kinds = keys.pop("layer_types", default)
    if not isinstance(kinds, list) or len(kinds) != len(default):
        raise keys.refuse("layer_types", kinds, f", not a list of {len(default)} layers")
    if any(kind not in LAYER_KINDS for kind in map(str, kinds)):
        raise keys.refuse("layer_types", kinds, f", not a list of {', '.join(LAYER_KINDS)}")
    return tuple(LAYER_KINDS[kind] for kind in kinds)


def config_values(config: PaliGemmaConfig) -> dict[str, Any]:
    """The values of a `config.json` that `parse_config` reads as the same configuration."""
    decoder, vision, stop = config.decoder, config.vision, list(config.stop_tokens)
    tokens = {"num_image_tokens": config.image_tokens}
    return {
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "model_type": "paligemma",
        "bos_token_id": 2,
        "eos_token_id": stop[0] if len(stop) == 1 else stop,
        "pad_token_id": 0,
        "hidden_size": decoder.width,
        "image_token_index": config.image_token_id,
        "projection_dim": decoder.width,
        "tie_word_embeddings": config.tied,
        "vocab_size": decoder.vocab_size,
        "text_config": {
            "model_type": "gemma",
            **_gemma2_values(decoder),
            **write_sizes(decoder, DECODER),
            **tokens,
            "rms_norm_eps": decoder.norm_eps,
            "rope_theta": decoder.rope_theta,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": config.tied,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            **write_sizes(vision, VISION),
            **tokens,
            "layer_norm_eps": vision.norm_eps,
            "projection_dim": decoder.width,
            "vision_use_head": False,
        },
    }


def _gemma2_values(decoder: DecoderConfig) -> dict[str, Any]:
    """The settings of Gemma 2, if the decoder is one."""
    if not decoder.post_norms:
        return {}
    kinds = {is_sliding: kind for kind, is_sliding in LAYER_KINDS.items()}
    return {
        "model_type": "gemma2",
        "query_pre_attn_scalar": decoder.query_pre_attn_scalar,
        "attn_logit_softcapping": decoder.attn_softcap,
        "final_logit_softcapping": decoder.final_softcap,
        "sliding_window": decoder.sliding_window,
        "layer_types": [kinds[is_sliding] for is_sliding in decoder.sliding_layers],
    }


PALIGEMMA = Family("paligemma", NAMES, parse_config, config_values)
