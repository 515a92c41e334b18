"""The estimate of the memory of training: compared with what is held for the backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.training_memory import memory
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.answer_loss import AnswerTokens, answer_loss
from pgcli.training.answer_settings import AnswerSettings
from pgcli.training.lora import add_lora
from pgcli.training.memory_estimate import TrainingDtypes, estimate_memory, plan_memory
from pgcli.training.packing import TokenizedExample
from pgcli.training.start_answers import train_all
from tests.support.random_weights import randomised
from tests.support.tiny_paligemma import SECOND_GENERATION

ROWS, TEXT = 2, 48
FULL, LORA = AnswerSettings(method="full"), AnswerSettings(targets="all")
CPU = torch.device("cpu")


def config(generation: int) -> PaliGemmaConfig:
    more: dict[str, Any] = SECOND_GENERATION if generation == 2 else {}
    return PaliGemmaConfig(
        VisionConfig(96, 3, 256, 4, patch_size=8, resolution=64),
        DecoderConfig(128, 3, 512, 8, 1, 16, 300, **more | {"sliding_layers": (True,) * 3}),
        image_token_id=299,
    )


def held_bytes(settings: AnswerSettings, generation: int, dtype: torch.dtype) -> tuple[int, int]:
    """What autograd holds beside the weights, with and without gradient checkpointing."""
    model = randomised(PaliGemma(config(generation)), dtype=dtype)
    if settings.method == "full":
        train_all(model, settings)
    else:
        add_lora(model, settings.lora, seed=0)
    row = TokenizedExample([2] * (TEXT // 2), [1] * (TEXT // 2))
    window = model.config.decoder.sliding_window
    tokens = AnswerTokens.of([row] * ROWS, patches=64, window=window, device=CPU)
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    found = []
    for checkpointing in (False, True):
        model.decoder.gradient_checkpointing = model.vision.gradient_checkpointing = checkpointing
        sizes: dict[int, Tensor] = {}

        def hold(tensor: Tensor, sizes: dict[int, Tensor] = sizes) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                sizes[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            patch_BPD = model.encode(torch.zeros(ROWS, 3, 64, 64, dtype=dtype))
            loss = answer_loss(model, patch_BPD, tokens, loss_mean="example")
        assert loss.requires_grad
        found.append(sum(one.untyped_storage().nbytes() for one in sizes.values()))
    return found[0], found[1]


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize(
    ("settings", "dtype"), [(FULL, torch.float32), (LORA, torch.float32), (LORA, torch.bfloat16)]
)
def test_estimate_is_what_the_backward_pass_holds(
    settings: AnswerSettings, dtype: torch.dtype, generation: int
) -> None:
    dtypes = TrainingDtypes.of(dtype, torch.float32)
    memory = estimate_memory(config(generation), settings, dtypes, TEXT)
    whole, checkpointed = held_bytes(settings, generation, dtype)
    logits = 2 * ROWS * memory.row_logits // 2  # of the answers, half of the text
    estimate = ROWS * memory.row + logits
    assert 0.75 < estimate / whole < 1.35
    assert checkpointed < ROWS * memory.row_checkpointed + logits < whole


def test_plan_keeps_activations_where_they_fit() -> None:
    """On a GPU rows follow from the free memory, on a CPU from the tokens alone."""
    dtypes = TrainingDtypes.of(torch.float32, torch.float32)
    memory = estimate_memory(config(1), FULL, dtypes, TEXT)

    def plan(device: str, rows_that_fit: float, **options: Any) -> tuple[int, bool]:
        free = (memory.fixed + memory.logits(8) + rows_that_fit * memory.row) / 0.85 + 1
        found = plan_memory(
            memory,
            AnswerSettings(method="full", **options),
            batch=8,
            slots=112,
            device=torch.device(device),
            free=int(free),
        )
        return found.micro_batch, found.checkpointing

    assert plan("cuda", 8) == plan("cpu", 8) == (8, False)
    assert plan("cpu", 0.5) == (8, True)
    rows, checkpointing = plan("cuda", 1)
    assert checkpointing
    assert 1 < rows < 8
    assert plan("cuda", 3, gradient_checkpointing="off") == (3, False)
    assert plan("cuda", 8, gradient_checkpointing="on") == (8, True)


def test_sizes_of_models_on_several_gpus_are_those_of_the_docs() -> None:
    """Weights, gradients and moments are divided; what FSDP2 gathers at a time is not."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    for size, method, gpus in (("28b", "lora", 1), ("28b", "full", 8), ("10b", "full", 4)):
        found = memory(size, method, gpus)
        total = found.total(1, checkpointing=True)
        parts = found.weights, found.gradients, found.moments, found.row_checkpointed, total
        cells = " | ".join(f"{part / 1e9:.1f}" for part in parts)
        assert f"| {size}, {method} | {gpus} | {cells} |" in page
