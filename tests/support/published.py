"""The published configuration of PaliGemma 3b at 224 pixels, in the Hub's words."""

from __future__ import annotations

from typing import Any


def paligemma_3b() -> dict[str, Any]:
    """`config.json` of the first generation."""
    return {
        "model_type": "paligemma",
        "image_token_index": 257152,
        "text_config": {
            "model_type": "gemma",
            "hidden_size": 2048,
            "intermediate_size": 16384,
            "num_attention_heads": 8,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "vocab_size": 257216,
        },
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "image_size": 224,
        },
    }
