"""The published configuration of PaliGemma 3b at 224 pixels, in the Hub's words."""

from __future__ import annotations

from typing import Any


def paligemma_3b() -> dict[str, Any]:
    """`config.json` of google/paligemma-3b-pt-224, keys as published."""
    tower = {"num_image_tokens": 256, "torch_dtype": "float32"}
    return {
        "_vocab_size": 257152,
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "bos_token_id": 2,
        "eos_token_id": 1,
        "hidden_size": 2048,
        "ignore_index": -100,
        "image_token_index": 257152,
        "model_type": "paligemma",
        "pad_token_id": 0,
        "projection_dim": 2048,
        "text_config": tower
        | {
            "hidden_size": 2048,
            "intermediate_size": 16384,
            "model_type": "gemma",
            "num_attention_heads": 8,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "vocab_size": 257216,
        },
        "torch_dtype": "float32",
        "transformers_version": "4.41.0.dev0",
        "vision_config": tower
        | {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "projection_dim": 2048,
            "projector_hidden_act": "gelu_fast",
            "vision_use_head": False,
        },
    }
