"""Adapters in training: parameters, files, and equality with PEFT."""

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pgcli.checkpoints import weights
from pgcli.checkpoints.adapters import open_adapter
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.families.paligemma import NAMES_OF_MODULES
from pgcli.checkpoints.weights import param_slices
from pgcli.model.lora import LoraLinear
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantize import quantize_per_channel
from pgcli.model.quantized import freeze_in_int8
from pgcli.training.lora import LoraSettings, add_lora, save_adapter
from tests.support.adapted_models import (
    PROMPTS,
    adapted,
    hf_logits,
    hf_training_logits,
    pgcli_logits,
    reference,
    training_logits,
    with_adapters,
)
from tests.support.tiny import RESOLUTION, normal

EVERYWHERE = LoraSettings(rank=4, alpha=6, targets="all,vision")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> PaliGemma:
    return weights.load_paligemma(folder, read_config(folder), dtype=dtype)


def pixels(model: PaliGemma) -> Tensor:
    size = (len(PROMPTS), 3, RESOLUTION, RESOLUTION)
    return normal(*size, dtype=model.projector.weight.dtype)


@torch.no_grad()
def answers(model: PaliGemma, steps: int = 3) -> Tensor:
    """The logits of a prompt and of some steps after it, as an engine computes them."""
    cache = model.kv_cache(len(PROMPTS))
    logits_BV = model.prefill(model.encode(pixels(model)), PROMPTS, None, cache, new_slots=steps)
    found = [logits_BV]
    for _ in range(steps):
        found.append(model.decode_step(torch.tensor([7, 8, 9]), cache))
    return torch.stack(found)


def adapter_parameters(model: PaliGemma) -> dict[str, Tensor]:
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def loaded_by_peft(base: Path, folder: Path, *, is_trainable: bool = False) -> Any:
    import peft  # four seconds

    return peft.PeftModel.from_pretrained(reference(base), folder, is_trainable=is_trainable)


@pytest.mark.parametrize(
    "settings", [LoraSettings(), EVERYWHERE, LoraSettings(rank=3, alpha=7, dropout=0.1)], ids=str
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("error::UserWarning")  # PEFT warns of keys that are missing or unknown
def test_a_saved_adapter_has_the_same_logits_in_peft(base, tmp_path, settings):
    model = adapted(base, settings)
    save_adapter(model, settings, tmp_path, base_model=str(base))
    peft_model = loaded_by_peft(base, tmp_path)
    logits, itself = hf_logits(peft_model), reference(base)
    torch.testing.assert_close(pgcli_logits(model), logits, rtol=0, atol=1e-4)
    assert peft_model.peft_config["default"].lora_dropout == settings.dropout
    itself.load_adapter(tmp_path)  # transformers without PEFT's model
    torch.testing.assert_close(hf_logits(itself), logits, rtol=0, atol=1e-6)
    assert (logits - hf_logits(reference(base))).abs().max() > 0.02


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_gradients_of_both_matrices_equal_those_of_peft(base, tmp_path):
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
            parameter.data = parameter.grad
    return model


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_updates_equal_peft(base, tmp_path):
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_new_adapters_are_float32_and_change_nothing(base, dtype):
    model, plain = load(base, dtype), load(base, dtype)
    add_lora(model, EVERYWHERE, seed=0)
    assert torch.equal(answers(model), answers(plain))
    parameters = adapter_parameters(model)
    assert {name.rpartition(".")[2] for name in parameters} == {"lora_A", "lora_B"}
    assert {one.dtype for one in parameters.values()} == {torch.float32}
    assert all(one.abs().max() > 0 for name, one in parameters.items() if name.endswith("A"))


@pytest.mark.parametrize(
    ("targets", "count"),
    [("attention", 3 * 4), ("all", 3 * 7), ("attention,vision", 3 * 4 + 2 * 4)],
)
def test_targets_choose_the_layers_of_a_tower(tiny, targets, count):
    model = load(tiny)
    settings = LoraSettings(targets=targets)
    add_lora(model, settings, seed=0)
    parts = [
        f"{layer} {part}"
        for layer, module in model.named_modules()
        if isinstance(module, LoraLinear)
        for part, _ in module.parts()
    ]
    assert len(parts) == count
    assert any(part.startswith("vision.") for part in parts) is settings.has_vision


def test_the_pattern_matches_names_of_all_versions(tiny):
    """With `q_proj` alone PEFT would adapt the vision tower's queries too."""
    modules = [name.rpartition(".")[0] for name in param_slices(load(tiny))]
    present = [NAMES_OF_MODULES.hub_name(f"{module}.")[:-1] for module in modules]
    older = [re.sub(r"^model\.language_model", "language_model.model", one) for one in present]
    pattern = re.compile(LoraSettings().pattern)
    for names in (present, older):
        found = {name for name in names if pattern.fullmatch(name)}
        assert len(found) == 3 * 4
        assert not any("vision" in name for name in found)


def test_sums_with_bfloat16_outputs_are_rounded_once(tiny):
    """As in PEFT: a float32 product is added to the layer's rounded output."""
    model = adapted(tiny, EVERYWHERE, torch.bfloat16)
    layer = model.get_submodule("decoder.layers.0.self_attn.o_proj")
    assert isinstance(layer, LoraLinear)
    ((_, adapter),) = layer.parts()
    x_MD = normal(50, adapter.lora_A.shape[1], dtype=torch.bfloat16)
    delta = x_MD.float() @ adapter.lora_A.T @ adapter.lora_B.T * adapter.scale
    expected = (layer.base(x_MD).float() + delta).bfloat16()
    assert (layer(x_MD) != expected).float().mean() < 0.01  # float32 sums in another order
    assert ((layer.base(x_MD) + delta.bfloat16()) != expected).float().mean() > 0.02


def test_gradients_flow_through_frozen_int8_weights(tiny):
    """They equal the gradients of a model with the dequantized weights."""
    found = []
    for is_int8 in (True, False):
        model = load(tiny)
        if is_int8:
            freeze_parts(model)
        else:
            round_to_int8(model)
        with_adapters(model, LoraSettings(rank=4, targets="all"))
        logits_BV = training_logits(model)
        logits_BV.square().mean().backward()
        found.append([logits_BV, *(one.grad for one in adapter_parameters(model).values())])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 1e-3 * other.norm()


def freeze_parts(model: PaliGemma) -> None:
    for part in model.parts():
        freeze_in_int8(model, part)


@torch.no_grad()
def round_to_int8(model: PaliGemma) -> None:
    """Round the decoder's weights to the values that int8 holds."""
    for name, weight in model.decoder.layers.named_parameters():
        if weight.ndim == 2:
            level_ND, scale_N = quantize_per_channel(weight)
            assert (weight - level_ND * scale_N[:, None]).norm() < 0.01 * weight.norm(), name
            weight.copy_(level_ND * scale_N[:, None])


def test_an_adapter_trained_over_int8_works_on_its_base_model(base, tmp_path):
    model, loaded = load(base), load(base)
    weights_bytes = sum(one.nbytes for one in model.decoder.layers.parameters())
    freeze_parts(model)
    held = (*model.decoder.layers.parameters(), *model.decoder.layers.buffers())
    assert sum(one.nbytes for one in held) < 0.35 * weights_bytes  # of float32
    with_adapters(model, EVERYWHERE)
    save_adapter(model, EVERYWHERE, tmp_path, base_model="org/base")
    adapter, parameters = open_adapter(tmp_path, loaded), dict(loaded.named_parameters())
    for name, rows in param_slices(loaded).items():
        adapter.apply(name, parameters[rows.parameter].narrow(0, rows.start, rows.shape[0]))
    expected = answers(loaded)
    assert (answers(model) - expected).norm() < 0.1 * expected.norm()
