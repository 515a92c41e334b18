"""Makes the task of a run: its rows are split, and its model begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pgcli.training.answer_task import AnswerTask
from pgcli.training.classify_task import ClassifyTask
from pgcli.training.contrastive_task import ContrastiveTask
from pgcli.training.rows import TrainingRow, TrainingRows
from pgcli.training.settings import TrainingSettings
from pgcli.training.setup_answers import make_answer_task
from pgcli.training.split import check_apart, split_by_image
from pgcli.training.start_encoders import (
    chosen_loss,
    freeze_towers,
    start_classifier,
    start_towers,
)
from pgcli.training.task import MicroBatches
from pgcli.training.task_inputs import TaskInputs


def split_rows(
    settings: TrainingSettings,
    given: TrainingRows,
    held_out: TrainingRows | None,
    *,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> tuple[Sequence[TrainingRow], Sequence[TrainingRow]]:
    """The rows to train on, and those to evaluate on, which may be none. Raises UsageError."""
    if held_out is not None:
        check_apart(given, held_out, track=track)
        return given, held_out
    if settings.eval_fraction:
        return split_by_image(given, settings.eval_fraction, settings.seed, track=track)
    return given, ()


def make_task(inputs: TaskInputs) -> AnswerTask | ContrastiveTask | ClassifyTask:
    """The task of the settings, with its model on the device.

    Raises UsageError for a checkpoint or labels that do not fit the task, and for fewer rows in a
    batch than processes; NoUsableDevice for too little memory.
    """
    settings = inputs.settings
    if settings.task == "answer":
        return make_answer_task(inputs)
    is_contrastive = settings.task == "contrastive"
    start = (start_towers if is_contrastive else start_classifier)(inputs)
    # a process that repeats its part of a contrastive update would exchange vectors alone
    exchanges = inputs.processes.count > 1 and is_contrastive
    shared: dict[str, Any] = {
        "model": start.model,
        "data": inputs.data(start.model.config.vision.resolution, start.preprocessing),
        "preprocessing": start.preprocessing,
        "device": inputs.device,
        "dtype": inputs.products_of(torch.float32),
        "micro_batches": MicroBatches(
            settings.micro_batch, is_fixed=bool(settings.micro_batch) or exchanges
        ),
        "save_to": start.save,
    }
    if is_contrastive:
        assert start.texts is not None
        loss = chosen_loss(settings, start.model)
        if settings.probe:
            freeze_towers(start.model)
        return ContrastiveTask(**shared, texts=start.texts, loss_name=loss)
    task = ClassifyTask(**shared, label_smoothing=settings.label_smoothing)
    if settings.probe:
        start.model.vision.requires_grad_(requires_grad=False)
        images = inputs.images(with_evaluation=True)
        task.fill_features(images, task.encode, inputs.track)
    return task
