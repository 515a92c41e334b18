"""A random PaliGemma of a few thousand weights with the built-in model's tokenizer."""

from pathlib import Path
from typing import Any

import torch

from pgcli.checkpoints.files import TOKENIZER_FILES
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.save import copy_files, save
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from tests.support.random_weights import randomised

VOCABULARY = 1915  # the built-in model's
SECOND_GENERATION: dict[str, Any] = {
    "attn_softcap": 5.0,
    "final_softcap": 3.0,
    "sliding_window": 8,
    "sliding_layers": (True, False),
    "post_norms": True,
}


def tiny_config(generation: int = 1, **decoder: Any) -> PaliGemmaConfig:
    """An image has four tokens."""
    more = SECOND_GENERATION if generation == 2 else {}
    return PaliGemmaConfig(
        VisionConfig(16, 1, 24, 2, patch_size=8, resolution=16),
        DecoderConfig(24, 2, 40, 2, 1, 12, VOCABULARY, **more | {"max_positions": 128} | decoder),
        image_token_id=VOCABULARY - 1,
    )


def write_checkpoint(folder: Path, *, generation: int = 1, **decoder: Any) -> Path:
    """Write a checkpoint."""
    model = randomised(PaliGemma(tiny_config(generation, **decoder)), dtype=torch.float32)
    save(model, folder, dtype=torch.float32)
    copy_files(BUILTIN, folder, TOKENIZER_FILES)
    return folder
