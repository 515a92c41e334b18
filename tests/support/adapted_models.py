"""Logits of pgcli and transformers for the same images and prompts, to compare adapters."""

from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.model.attention_masks import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.training.answers.lora import LoraSettings, add_lora
from tests.support.random_weights import normal
from tests.support.tiny import PATCHES, RESOLUTION

PROMPTS = torch.tensor([[2, 40, 41, 108], [2, 50, 60, 108], [2, 9, 12, 108]])


def adapted(folder: Path, settings: LoraSettings, dtype: torch.dtype = torch.float32) -> PaliGemma:
    """The model of a checkpoint, with adapters that change its output."""
    return with_adapters(weights.load_paligemma(folder, read_config(folder), dtype=dtype), settings)


def with_adapters(model: PaliGemma, settings: LoraSettings) -> PaliGemma:
    """The same model, with adapters that change its output."""
    add_lora(model, settings, seed=0)
    trained = [one for name, one in model.named_parameters() if name.endswith("lora_B")]
    for seed, parameter in enumerate(trained):
        parameter.data = 0.05 * normal(*parameter.shape, seed=seed, dtype=parameter.dtype)
    return model


def reference(
    folder: Path, dtype: torch.dtype = torch.float32
) -> transformers.PaliGemmaForConditionalGeneration:
    """transformers' model of a checkpoint, frozen."""
    model = transformers.PaliGemmaForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    return model.eval().requires_grad_(False)


def pixels() -> Tensor:
    """An image for each prompt."""
    generator = torch.Generator().manual_seed(3)
    return torch.rand(len(PROMPTS), 3, RESOLUTION, RESOLUTION, generator=generator) * 2 - 1


@torch.no_grad()
def pgcli_logits(model: PaliGemma) -> Tensor:
    """The engine's logits (B, V) after each prompt."""
    pixels_BCRR = pixels().to(model.projector.weight.dtype)
    cache = model.kv_cache(len(PROMPTS))
    return model.prefill(model.encode(pixels_BCRR), PROMPTS, None, cache)


def training_logits(model: PaliGemma) -> Tensor:
    """pgcli's logits (B, V) after each prompt, with gradients."""
    position_BS = torch.arange(1, PATCHES + PROMPTS.shape[1] + 1).expand(len(PROMPTS), -1)
    patch_BPD = model.encode(pixels())
    hidden_BTD = model(patch_BPD, PROMPTS, position_BS, AttentionMasks(None, None))
    return model.decoder.logits(hidden_BTD[:, -1])


def hf_training_logits(model: nn.Module) -> Tensor:
    """The logits (B, V) of transformers or PEFT after each prompt, with gradients."""
    image = torch.full((len(PROMPTS), PATCHES), model.config.image_token_index)
    token_BS = torch.cat([image, PROMPTS], dim=1)
    out = model(
        input_ids=token_BS,
        attention_mask=torch.ones_like(token_BS),
        token_type_ids=torch.zeros_like(token_BS),
        pixel_values=pixels(),
    )
    logits_BV: Tensor = out.logits[:, -1]
    return logits_BV


#: The same, without gradients.
hf_logits = torch.no_grad()(hf_training_logits)
