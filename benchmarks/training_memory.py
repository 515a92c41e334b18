"""The memory of training PaliGemma 2 on several GPUs: `python benchmarks/training_memory.py`.

Computed from the sizes of the models, as `pgcli train --dry-run` does; nothing is loaded.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.training.answer_settings import AnswerSettings, Method
from pgcli.training.memory_estimate import TrainingDtypes, TrainingMemory, estimate_memory

VISION = VisionConfig(1152, 27, 4304, 16, patch_size=14, resolution=224)
GEMMA = DecoderConfig(
    2304, 26, 9216, 8, 4, 256, 257_216, attn_softcap=50.0, final_softcap=30.0, post_norms=True
)
SIZES = {
    "3b": GEMMA,
    "10b": replace(GEMMA, width=3584, depth=42, mlp_dim=14_336, num_heads=16, num_kv_heads=8),
    "28b": replace(
        GEMMA, width=4608, depth=46, mlp_dim=36_864, num_heads=32, num_kv_heads=16, head_dim=128
    ),
}
TEXT_TOKENS = 64  # of a row, beside 256 of its image
GPUS = (1, 2, 4, 8, 16)


def memory(size: str, method: Method, gpus: int = 1) -> TrainingMemory:
    """What each GPU holds, with products in bfloat16 and activations computed twice."""
    config = PaliGemmaConfig(VISION, SIZES[size], image_token_id=257_152)
    settings = AnswerSettings(method=method, gradient_checkpointing="on")
    held = torch.float32 if method == "full" else torch.bfloat16
    dtypes = TrainingDtypes.of(held, torch.bfloat16)
    return estimate_memory(config, settings, dtypes, TEXT_TOKENS, shards=gpus)


def main() -> None:
    """Print a table in Markdown."""
    lines = ["| | GPUs | weights | gradients | moments | a row | with a row |", "|---" * 7 + "|"]
    for size in SIZES:
        runs: list[tuple[Method, int]] = [("lora", 1), *(("full", gpus) for gpus in GPUS)]
        for method, gpus in runs:
            found = memory(size, method, gpus)
            total = found.total(1, checkpointing=True)
            parts = found.weights, found.gradients, found.moments, found.row_checkpointed, total
            cells = " | ".join(f"{part / 1e9:.1f}" for part in parts)
            lines.append(f"| {size}, {method} | {gpus} | {cells} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
