"""The state of a training run in one file: weights, moments of the optimizer, and the step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pgcli.errors import OutputFailed
from pgcli.state.atomic_file import publish_file, temporary_path
from pgcli.state.write_errors import wrap_write_errors

WEIGHT = "weight"
KEY = "progress"  # of the file's metadata


@dataclass
class TrainingProgress:
    """How far a run is: updates made, the best evaluation, and whether nothing is left to do.

    `waiting` counts the evaluations since the best one.
    """

    step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    waiting: int = 0
    is_complete: bool = False


def save_state(
    file: Path, progress: TrainingProgress, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Replace the file by the current state; of a complete run only the progress is kept."""
    tensors = {} if progress.is_complete else dict(_tensors(model, optimizer))
    temporary = temporary_path(file)
    with wrap_write_errors(file):
        try:
            save_file(tensors, temporary, metadata={KEY: json.dumps(asdict(progress))})
            publish_file(temporary, file, replace=True)
        finally:
            temporary.unlink(missing_ok=True)


def load_state(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingProgress:
    """Fill the model and the optimizer from the file; return the progress of the run.

    Without a file nothing is filled, and the run is at its beginning. Raises OutputFailed if the
    file is damaged or of another model.
    """
    if not file.exists():
        return TrainingProgress()
    try:
        with safe_open(file, framework="pt") as stored:
            progress = TrainingProgress(**json.loads(stored.metadata()[KEY]))
            if not progress.is_complete:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                _fill(tensors, model, optimizer)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise OutputFailed(
            f"{file} cannot be resumed from: {error}", hint="--overwrite begins again"
        ) from error
    return progress


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The trained parameters, and what the optimizer keeps of each, by name."""
    for name, parameter in _trained(model).items():
        yield f"{WEIGHT}.{name}", parameter.detach().cpu().contiguous()
        for kind, value in optimizer.state[parameter].items():
            yield f"{kind}.{name}", value.detach().cpu().contiguous()


def _fill(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    parameters = _trained(model)
    for stored, tensor in tensors.items():
        kind, _, name = stored.partition(".")
        parameter = parameters[name]
        if kind == WEIGHT:
            parameter.data.copy_(tensor)
        else:
            # AdamW keeps its count of steps on the CPU
            device = "cpu" if kind == "step" else parameter.device
            optimizer.state[parameter][kind] = tensor.to(device)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: one for name, one in model.named_parameters() if one.requires_grad}
