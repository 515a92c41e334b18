"""The published configuration of PaliGemma 3b at 224 pixels, in the Hub's words."""

from typing import Any

from benchmarks.measure import TEXT, VISION


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
        "text_config": tower | TEXT[1],
        "torch_dtype": "float32",
        "transformers_version": "4.41.0.dev0",
        "vision_config": tower
        | VISION
        | {"projection_dim": 2048, "projector_hidden_act": "gelu_fast"},
    }
