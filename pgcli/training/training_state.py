"""Saves and loads the state of a training run: weights, optimizer moments and the step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pgcli.checkpoints.safetensors_files import TensorSpec, write_tensors
from pgcli.errors import OutputFailed
from pgcli.stores.writing import published

WEIGHT, STEPS = "weight", "step"
KEY = "progress"  # in the file's metadata


@dataclass
class TrainingProgress:
    """The progress of a run: its updates, its best evaluation and whether it is complete.

    `waiting` counts the evaluations since the best one.
    """

    step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    waiting: int = 0
    is_complete: bool = False


def save_state(
    file: Path,
    progress: TrainingProgress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Replace the file by the current state; the state of a complete run is its progress only.

    The file is the same for any number of processes, and the first writes it.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in _trained(model).items() if not progress.is_complete else ():
        tensors[f"{WEIGHT}.{name}"] = parameter.detach()
        for kind, value in optimizer.state[parameter].items():
            tensors[f"{kind}.{name}"] = value
    specs = [TensorSpec(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    with published(file, is_owner=True) as path:
        write_tensors(path, specs, iter(tensors.values()), {KEY: json.dumps(asdict(progress))})


def load_state(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingProgress:
    """Fill the model and the optimizer from the file; return the progress of the run.

    Without a file, returns the progress of a new run. Raises OutputFailed if the file is damaged or
    belongs to another model.
    """
    if not file.exists():
        return TrainingProgress()
    try:
        with safe_open(file, framework="pt") as saved:
            progress = TrainingProgress(**json.loads(saved.metadata()[KEY]))
            if not progress.is_complete:
                _fill(saved, model, optimizer)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise OutputFailed(
            f"the saved state {file} cannot be read: {error}", hint="<--overwrite> starts over"
        ) from error
    return progress


def _fill(saved: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    parameters = _trained(model)
    if missing := {f"{WEIGHT}.{name}" for name in parameters} - {*saved.keys()}:
        raise KeyError(min(missing))
    for key in saved.keys():  # noqa: SIM118
        kind, _, name = key.partition(".")
        parameter, tensor = parameters[name], saved.get_tensor(key)
        if kind != STEPS and tensor.shape != parameter.shape:
            raise ValueError(f"{key} has the shape {[*tensor.shape]}")
        if kind == WEIGHT:
            parameter.data.copy_(tensor)
        else:
            # AdamW keeps its count of steps on the CPU
            value = tensor if kind == STEPS else tensor.to(parameter.device)
            optimizer.state[parameter][kind] = value


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
