"""Checkpoints with a merged adapter are loaded by `--model` and by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.save import merge_adapter, save, save_checkpoint
from pgcli.engine import loader
from pgcli.training.answers.lora import LoraSettings, save_adapter
from tests.support.adapted_models import adapted, hf_logits, pgcli_logits, reference
from tests.support.peft_adapters import (
    EMBEDDINGS,
    LORA_OPTIONS,
    PEFT_WARNINGS,
    SOME,
    TARGETS,
    trained,
)

SETTINGS = LoraSettings(rank=4, alpha=6, targets="all")


def test_a_merged_checkpoint_has_the_logits_of_the_adapter(base: Path, tmp_path: Path) -> None:
    model = adapted(base, SETTINGS)
    save_adapter(model, SETTINGS, tmp_path / "adapter", base_model=str(base))
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
    merged = weights.load(tmp_path / "merged", read_config(base), dtype=torch.float32)
    expected = pgcli_logits(model)
    torch.testing.assert_close(pgcli_logits(merged), expected, rtol=0, atol=1e-5)
    theirs = hf_logits(reference(tmp_path / "merged"))
    torch.testing.assert_close(theirs, expected, rtol=0, atol=1e-4)
    assert (expected - hf_logits(reference(base))).abs().max() > 0.02


@PEFT_WARNINGS
@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [*TARGETS, *LORA_OPTIONS, *(one for one, _ in EMBEDDINGS)], ids=str
)
def test_every_adapter_of_peft_is_merged(base: Path, tmp_path: Path, config: Any) -> None:
    """Compared with PEFT's unmerged model, as its merge changes tied weights both."""
    expected = hf_logits(trained(base, tmp_path / "adapter", **(SOME | config)))
    merged = tmp_path / "merged"
    merge_adapter(base, tmp_path / "adapter", merged)
    found = pgcli_logits(weights.load(merged, read_config(merged), dtype=torch.float32))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(hf_logits(reference(merged)), expected, rtol=0, atol=1e-4)
    assert (expected - hf_logits(reference(base))).abs().max() > 0.02


def test_a_bfloat16_checkpoint_is_merged_with_one_rounding(tiny: Path, tmp_path: Path) -> None:
    model = weights.load(tiny, read_config(tiny), dtype=torch.bfloat16)
    save_checkpoint(model, tmp_path / "half", source=tiny, dtype=torch.bfloat16)
    model = adapted(tmp_path / "half", SETTINGS, torch.bfloat16)
    save_adapter(model, SETTINGS, tmp_path / "adapter", base_model="half")
    merge_adapter(tmp_path / "half", tmp_path / "adapter", tmp_path / "merged")
    before, after, adapter = (
        load_file(file)
        for file in (
            tmp_path / "half" / "model.safetensors",
            tmp_path / "merged" / "model.safetensors",
            tmp_path / "adapter" / "adapter_model.safetensors",
        )
    )
    changed = 0
    for name, weight in before.items():
        expected = weight
        if (delta := change(name, adapter)) is not None:
            expected, changed = (weight.float() + delta).bfloat16(), changed + 1
        differ = expected != after[name]  # a float32 sum in another order rounds to a neighbour
        assert differ.float().mean() < 1e-3
        torch.testing.assert_close(after[name], expected, rtol=2**-7, atol=1e-6)
    assert changed == len(adapter) // 2


def change(name: str, adapter: dict[str, Tensor]) -> Tensor | None:
    """What the adapter adds to a stored tensor."""
    module = name.removesuffix(".weight").replace("language_model.model", "language_model")
    start = f"base_model.model.model.{module}"
    if f"{start}.lora_A.weight" not in adapter:
        return None
    product = adapter[f"{start}.lora_B.weight"] @ adapter[f"{start}.lora_A.weight"]
    return SETTINGS.scale * product


def test_a_merged_checkpoint_is_loaded_as_its_base_is(tiny: Path, tmp_path: Path) -> None:
    save_adapter(adapted(tiny, SETTINGS), SETTINGS, tmp_path / "adapter", base_model="")
    merge_adapter(tiny, tmp_path / "adapter", tmp_path / "merged")
    names = {file.name for file in tiny.iterdir()}
    assert names == {file.name for file in (tmp_path / "merged").iterdir()}
    loader.load(Checkpoint("merged", tmp_path / "merged"), device="cpu", batch_size=1)


def test_an_adapter_that_is_not_merged_is_not_lost_silently(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="adapted"):
        save(adapted(tiny, SETTINGS), tmp_path, dtype=torch.float32)
    assert not list(tmp_path.iterdir())
