"""Checkpoints with a merged adapter are loaded by `--model` and by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.save import merge_adapter, save
from pgcli.engine import loader
from pgcli.training.answers.lora import LoraSettings, save_adapter
from tests.support.adapted_models import adapted, hf_logits, pgcli_logits, reference
from tests.support.peft_adapters import (
    EMBEDDINGS,
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
@pytest.mark.parametrize("config", [TARGETS[3], *EMBEDDINGS], ids=str)
def test_adapters_of_embeddings_and_heads_are_merged(
    base: Path, tmp_path: Path, config: Any
) -> None:
    """Compared with PEFT's unmerged model, as its merge changes tied weights both."""
    expected = hf_logits(trained(base, tmp_path / "adapter", **(SOME | config)))
    merged = tmp_path / "merged"
    merge_adapter(base, tmp_path / "adapter", merged)
    found = pgcli_logits(weights.load(merged, read_config(merged), dtype=torch.float32))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(hf_logits(reference(merged)), expected, rtol=0, atol=1e-4)
    assert (expected - hf_logits(reference(base))).abs().max() > 0.02


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
