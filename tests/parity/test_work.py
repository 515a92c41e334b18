"""How much a run computes: an image once, a token a row and step, and the memory of a slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.model.paligemma import PaliGemma
from tests.support.random_weights import normal
from tests.support.sequences import run_together, vocabulary_of
from tests.support.tiny import PATCHES, RESOLUTION

PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 304, 108], [2, 108]]


@pytest.fixture(scope="module")
def model(tiny: Path) -> PaliGemma:
    return weights.load(tiny, read_config(tiny), dtype=torch.float64)


@pytest.fixture
def patch_BPD(model: PaliGemma) -> Tensor:
    return model.encode(normal(len(PROMPTS), 3, RESOLUTION, RESOLUTION).clamp(-1, 1))


@pytest.fixture
def hidden(model: PaliGemma) -> Iterator[list[Tensor]]:
    """The outputs of the decoder's first layer, one tensor per forward pass."""
    outputs: list[Tensor] = []
    hook = model.decoder.layers[0].register_forward_hook(lambda *args: outputs.append(args[-1]))
    yield outputs
    hook.remove()


def test_decode_step_processes_one_token_per_row(
    model: PaliGemma, patch_BPD: Tensor, hidden: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill computes logits for the last position only: a row of logits is one mebibyte."""
    scored, logits = [], model.decoder.logits
    monkeypatch.setattr(model.decoder, "logits", lambda x: scored.append(x.shape[:-1]) or logits(x))
    endless = vocabulary_of(model, image_token=model.config.image_token_id)
    run_together(model, patch_BPD, PROMPTS, endless, 4)
    assert [tuple(x.shape[:2]) for x in hidden] == [(3, PATCHES + 6), (3, 1), (3, 1), (3, 1)]
    assert scored == [(3,)] * 4
