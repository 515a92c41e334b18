"""Adapters that are trained here are those of PEFT: logits, gradients and files."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.model.paligemma import PaliGemma
from pgcli.training.answers.lora import LoraSettings, add_lora, save_adapter
from tests.support.adapted_models import (
    adapted,
    hf_logits,
    hf_training_logits,
    pgcli_logits,
    reference,
    training_logits,
)

EVERYWHERE = LoraSettings(rank=4, alpha=6, targets="all,vision")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def loaded_by_peft(base: Path, folder: Path, *, is_trainable: bool = False) -> Any:
    import peft  # four seconds

    return peft.PeftModel.from_pretrained(reference(base), folder, is_trainable=is_trainable)


@pytest.mark.parametrize(
    "settings", [LoraSettings(), EVERYWHERE, LoraSettings(rank=3, alpha=7)], ids=str
)
@pytest.mark.filterwarnings("error::UserWarning")  # PEFT warns of keys that are missing
def test_a_saved_adapter_has_the_same_logits_in_peft(
    base: Path, tmp_path: Path, settings: LoraSettings
) -> None:
    model = adapted(base, settings)
    save_adapter(model, settings, tmp_path, base_model=str(base))
    logits = hf_logits(loaded_by_peft(base, tmp_path))
    torch.testing.assert_close(pgcli_logits(model), logits, rtol=0, atol=1e-4)
    assert (logits - hf_logits(reference(base))).abs().max() > 0.02


def test_transformers_loads_a_saved_adapter_itself(tiny: Path, tmp_path: Path) -> None:
    model = adapted(tiny, EVERYWHERE)
    save_adapter(model, EVERYWHERE, tmp_path, base_model=str(tiny))
    theirs = reference(tiny)
    theirs.load_adapter(tmp_path)
    torch.testing.assert_close(pgcli_logits(model), hf_logits(theirs), rtol=0, atol=1e-4)


def test_gradients_of_both_matrices_equal_those_of_peft(base: Path, tmp_path: Path) -> None:
    model = adapted(base, EVERYWHERE)
    save_adapter(model, EVERYWHERE, tmp_path, base_model=str(base))
    theirs = loaded_by_peft(base, tmp_path, is_trainable=True)
    for logits_BV in (training_logits(model), hf_training_logits(theirs)):
        nn.functional.cross_entropy(logits_BV, torch.tensor([5, 6, 7])).backward()
    save_adapter(with_gradients(model), EVERYWHERE, tmp_path / "gradients", base_model="")
    mine = load_file(tmp_path / "gradients" / "adapter_model.safetensors")
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            # both are as far from the gradients in float64 as this
            apart = mine.pop(name.replace(".default", "")) - parameter.grad
            assert apart.norm() < 2e-3 * parameter.grad.norm()
    assert mine == {}


def with_gradients(model: PaliGemma) -> PaliGemma:
    """The model with the gradients of adapters in place of their matrices."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            parameter.data = parameter.grad
    return model


def test_settings_of_a_saved_adapter_are_read_by_peft(tiny: Path, tmp_path: Path) -> None:
    import peft

    settings = LoraSettings(rank=4, alpha=6, dropout=0.1, targets="all")
    model = weights.load(tiny, read_config(tiny), dtype=torch.float32)
    add_lora(model, settings, seed=0)
    save_adapter(model, settings, tmp_path, base_model="org/base", revision="12ab")
    config = peft.PeftConfig.from_pretrained(tmp_path)
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 6, 0.1)
    assert (config.use_rslora, config.bias, config.task_type) == (False, "none", "CAUSAL_LM")
    assert (config.base_model_name_or_path, config.revision) == ("org/base", "12ab")
    values = json.loads((tmp_path / "adapter_config.json").read_text())
    assert values.keys() <= peft.LoraConfig().to_dict().keys()


def test_updates_are_those_of_peft(base: Path, tmp_path: Path) -> None:
    """Three updates of two ragged rows, as the benchmark measures them."""
    from benchmarks import lora_step

    folder = tmp_path / "model"
    shutil.copytree(base, folder)
    options = argparse.Namespace(
        folder=folder, dtype="float32", targets="all", rows=2, micro_batch=1, no_checkpointing=False
    )
    steps = lora_step.pgcli_step(options), lora_step.transformers_step(options)
    losses = [[step() for _ in range(3)] for step in steps]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0][2] < losses[0][0]
