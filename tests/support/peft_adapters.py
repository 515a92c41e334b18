"""Adapters that PEFT writes, with every kind of LoRA that pgcli reads."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.adapted_models import reference

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
