"""Runs the product's trainer for the makers of the built-in models; a run that ended resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pgcli.training.processes import ALONE, Processes
from pgcli.training.task import TrainingTask
from pgcli.training.trainer import Trainer, TrainerOptions


def run_trainer(
    task: TrainingTask, folder: Path, processes: Processes = ALONE, **options: Any
) -> None:
    """Train with the options of the trainer, and show a bar; the results are in the folder."""
    torch.set_num_threads(1)  # the other processor draws
    state = folder.with_name(f"{folder.name}.pgcli")
    for path in (folder, state):
        path.mkdir(parents=True, exist_ok=True)
    options = {"weight_decay": 0.05, "betas": (0.9, 0.98)} | options
    trainer = Trainer(task, TrainerOptions(**options), folder, state, processes)
    with tqdm(
        desc=folder.name,
        total=trainer.options.steps,
        initial=trainer.progress.step,
        disable=not processes.is_first,
    ) as bar:
        trainer.run(on_update=lambda line: bar.update() and None)
