"""Checkpoints with adapters, of this code and of PEFT."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.model.attention import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.training.lora import LoraSettings, add_lora
from tests.support.tiny import PATCHES, RESOLUTION, normal

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


DECODER = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SOME = {"target_modules": ["q_proj", "v_proj"]}
#: About adapted tied weights and unused settings.
PEFT_WARNINGS = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::RuntimeWarning:peft"
)
#: The adapted layers.
TARGETS: list[dict[str, Any]] = [
    SOME,
    {"target_modules": DECODER},
    {"target_modules": "all-linear"},
    {"target_modules": [*DECODER, "out_proj", "fc1", "fc2"]},
    {"target_modules": ["linear", "o_proj"]},
    {"target_modules": ["patch_embedding", "position_embedding"]},
    {"target_modules": r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"},
    {"target_modules": ["q_proj"], "layers_to_transform": [1]},
]
#: Ranks, scales and fully trained modules.
LORA_OPTIONS: list[dict[str, Any]] = [
    {"r": 2, "lora_alpha": 3},
    {"use_rslora": True, "r": 8},
    {"rank_pattern": {"v_proj": 2, r"layers\.1\.self_attn\.q_proj": 7}},
    {"alpha_pattern": {r"layers\.(0|2)\.self_attn\.(q|v)_proj": 30, "q_proj": 1}},
    {"alpha_pattern": {"v_proj": 9}, "rank_pattern": {"q_proj": 3}, "use_rslora": True},
    {"alpha_pattern": {"proj": 40, "q_": 50, "model.v_proj": 60, "q_proj": 7}},
    {"fan_in_fan_out": True},
    {"modules_to_save": ["multi_modal_projector"]},
    {"modules_to_save": ["linear", "post_layernorm"]},
    {"modules_to_save": ["vision_tower"], "target_modules": ["o_proj"]},
]
#: Adapted embeddings and heads; except in the first, the two are no longer tied.
TYING: dict[str, Any] = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
EMBEDDINGS: list[dict[str, Any]] = [
    TYING,
    {"target_modules": ["embed_tokens"]},
    {"target_modules": ["lm_head", "q_proj"]},
    {"target_modules": ["lm_head", "embed_tokens"]},
    {"modules_to_save": ["lm_head"]},
    {"modules_to_save": ["embed_tokens"]},
    {"modules_to_save": ["embed_tokens", "lm_head"]},
    {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
]


def trained(
    base: Path, folder: Path, *, dtype: torch.dtype = torch.float32, **config: Any
) -> nn.Module:
    """PEFT's model with random matrices and modules, saved into the folder."""
    import peft  # with all the models of transformers that it adapts: four seconds

    torch.manual_seed(5)
    lora = peft.LoraConfig(init_lora_weights=False, **({"r": 4, "lora_alpha": 6} | config))
    model = peft.get_peft_model(reference(base, dtype), lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ".lora_" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    adapted: nn.Module = model.eval()
    return adapted
