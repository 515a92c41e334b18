"""Tiny models with random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import nn

from pgcli.checkpoints.find import BUILTIN

Module = TypeVar("Module", bound=nn.Module)


def randomised(module: Module, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Module:
    """The module with all parameters random, including norms and position embeddings.

    Matrices keep the scale of their inputs, so that every layer contributes.
    """
    generator = torch.Generator().manual_seed(seed)
    module.to(dtype).requires_grad_(False).eval()
    for name, parameter in module.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        fan_in = parameter[0].numel() if parameter.ndim > 1 and "embedding" not in name else 1
        parameter.copy_(drawn / fan_in**0.5)
    return module


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A tensor of standard normal numbers that depends only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


RESOLUTION, PATCH = 56, 14
PATCHES = (RESOLUTION // PATCH) ** 2


# a window shorter than every prefix, and softcaps that these scores and logits reach
SECOND_GENERATION: dict[str, Any] = {
    "query_pre_attn_scalar": 24,
    "sliding_window": 6,
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 0.3,
    "num_key_value_heads": 2,
}


def reference(
    vocab_size: int,
    *,
    seed: int = 0,
    generation: int = 1,
    resolution: int = RESOLUTION,
    **decoder: Any,
) -> transformers.PaliGemmaForConditionalGeneration:
    """transformers' model with random weights, large enough for answers to vary."""
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    kind = transformers.GemmaConfig
    if generation == 2:
        kind, sizes = transformers.Gemma2Config, sizes | SECOND_GENERATION
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=resolution,
            patch_size=PATCH,
            vision_use_head=False,
        ),
        text_config=kind(vocab_size=vocab_size, **(sizes | decoder)),
        image_token_index=vocab_size - 1,
        vocab_size=vocab_size,
        projection_dim=(sizes | decoder)["hidden_size"],
        hidden_size=(sizes | decoder)["hidden_size"],
    )
    model = transformers.PaliGemmaForConditionalGeneration(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.add_(torch.randn_like(parameter) * 0.1)
        elif "embed_tokens" not in name:
            parameter.mul_(6)
    return model


def tokenizer_into(folder: Path, *, resolution: int = RESOLUTION) -> None:
    """Write the built-in model's tokenizer, and the image processor of a resolution."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(BUILTIN / name, folder / name)
    settings = json.loads((BUILTIN / "preprocessor_config.json").read_text())
    settings["size"] = {"height": resolution, "width": resolution}
    settings["image_seq_length"] = (resolution // PATCH) ** 2
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def checkpoint_into(
    folder: Path,
    *,
    seed: int = 0,
    generation: int = 1,
    resolution: int = RESOLUTION,
    **decoder: Any,
) -> Path:
    """Write a complete checkpoint: tokenizer, configuration and random weights."""
    from tokenizers import Tokenizer

    tokenizer_into(folder, resolution=resolution)
    vocab_size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    model = reference(
        vocab_size, seed=seed, generation=generation, resolution=resolution, **decoder
    )
    model.save_pretrained(folder)
    return folder
