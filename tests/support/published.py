"""The published configuration of PaliGemma 3b, as on the Hub and as pgcli reads it."""

from typing import Any

from benchmarks.measure import TEXT, VISION
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig

#: PaliGemma 1, 3b at 448 pixels.
PUBLISHED = PaliGemmaConfig(
    VisionConfig(1152, 27, 4304, 16, patch_size=14, resolution=448),
    DecoderConfig(2048, 18, 16384, 8, 1, 256, vocab_size=257216),
    image_token_id=257152,
)


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
