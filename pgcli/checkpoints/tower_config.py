"""Reads the sizes of vision and text towers from a `config.json`: SigLIP, CLIP and ViT."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as brief
from types import MappingProxyType
from typing import Any, Literal

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.model.config import Activation, TextConfig, VisionConfig

Family = Literal["siglip", "clip", "vit"]

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_fast": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "quick_gelu": "quick_gelu",
    }
)
#: What transformers assumes where the configuration has no value.
DEFAULT_ACTIVATION = {"siglip": "gelu_pytorch_tanh", "clip": "quick_gelu", "vit": "gelu"}
DEFAULT_EPS = {"siglip": 1e-6, "clip": 1e-5, "vit": 1e-12}
DEFAULT_PATCH = {"siglip": 16, "clip": 32, "vit": 16}

#: Keys that earlier versions of transformers wrote into every level, about generation.
EARLIER_KEYS = frozenset(
    """
    add_cross_attention bad_words_ids begin_suppress_tokens cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_scores prefix pruned_heads remove_invalid_values
    repetition_penalty return_dict_in_generate sep_token_id suppress_tokens task_specific_params
    temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p
    torchscript typical_p use_bfloat16 xla_device
    """.split()
)


def read_vision(keys: ConfigReader, family: Family) -> VisionConfig:
    """The sizes of a vision tower; ValueError names a key that is not supported."""
    keys.discard({"projection_dim", "vision_use_head", "encoder_stride", *EARLIER_KEYS})
    keys.expect("num_channels", 3)
    keys.expect("qkv_bias", True)
    config = VisionConfig(
        **_sizes(keys, family, width=768, mlp_dim=3072, heads=12),
        patch_size=keys.integer("patch_size", DEFAULT_PATCH[family], high=1024),
        resolution=keys.integer("image_size", 224, high=8192),
        class_token=family != "siglip",
        patch_bias=family != "clip",
        pre_norm=family == "clip",
    )
    keys.finish()
    if config.patch_size > config.resolution:
        raise ValueError(
            f"{keys.name('patch_size')} is {config.patch_size}, and the image size is "
            f"{config.resolution}"
        )
    return config


def read_text(keys: ConfigReader, family: Family) -> TextConfig:
    """The sizes of a text tower; ValueError names a key that is not supported."""
    eos = keys.integer("eos_token_id", 49_407, high=1 << 24)
    keys.discard({"projection_dim", "projection_size", *EARLIER_KEYS})
    is_clip = family == "clip"
    config = TextConfig(
        **_sizes(
            keys,
            family,
            width=512 if is_clip else 768,
            mlp_dim=2048 if is_clip else 3072,
            heads=8 if is_clip else 12,
        ),
        vocab_size=keys.integer("vocab_size", 49_408 if is_clip else 32_000, high=1 << 24),
        max_positions=keys.integer("max_position_embeddings", 77 if is_clip else 64, high=1 << 16),
        causal=is_clip,
        # 2 stands for "the highest token" in checkpoints from before transformers#24773
        eos_token=eos if is_clip and eos != 2 else None,
    )
    keys.finish()
    return config


def _sizes(
    keys: ConfigReader, family: Family, *, width: int, mlp_dim: int, heads: int
) -> dict[str, Any]:
    """The fields that both towers have."""
    activation = keys.pop("hidden_act", DEFAULT_ACTIVATION[family])
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{keys.name('hidden_act')} is {brief(activation)}; supported: {', '.join(ACTIVATIONS)}"
        )
    attention_dropout = keys.fraction("attention_dropout", 0.0)
    sizes: dict[str, Any] = {
        "width": keys.integer("hidden_size", width),
        "depth": keys.integer("num_hidden_layers", 12, high=1000),
        "mlp_dim": keys.integer("intermediate_size", mlp_dim),
        "num_heads": keys.integer("num_attention_heads", heads, high=4096),
        "norm_eps": keys.positive("layer_norm_eps", DEFAULT_EPS[family]),
        "activation": ACTIVATIONS[activation],
        "dropout": keys.fraction("hidden_dropout_prob", keys.fraction("dropout", 0.0)),
        "attention_dropout": keys.fraction("attention_probs_dropout_prob", attention_dropout),
    }
    if sizes["width"] % sizes["num_heads"]:
        raise ValueError(
            f"{keys.name('num_attention_heads')} is {sizes['num_heads']}, which does not divide "
            f"the width {sizes['width']}"
        )
    return sizes
