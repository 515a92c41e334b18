"""Makes the task of a run: rows are read, split and ordered, and the model begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_description
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.processor_files import (
    IMAGE_PROCESSOR_FILES,
    TOKENIZER_FILES,
    copy_files,
    write_image_processor,
)
from pgcli.checkpoints.save_towers import save_classifier, save_two_towers
from pgcli.checkpoints.tower_config import Family
from pgcli.device.select import choose_device, choose_dtype
from pgcli.embedding.engine import image_spec
from pgcli.embedding.loader import image_preprocessing, text_processor
from pgcli.embedding.texts import TextFormat, TextProcessor, canonical_text
from pgcli.errors import UsageError
from pgcli.images import ImageDecoder, ImageLimits
from pgcli.model.two_towers import TwoTowers
from pgcli.pipeline.error_budget import ErrorBudget
from pgcli.training.classify_task import ClassifyTask, ProbeTask
from pgcli.training.contrastive_task import ContrastiveTask
from pgcli.training.image_batches import ImageLoader, RowOrder
from pgcli.training.image_errors import ImageErrors
from pgcli.training.learned_tokenizer import EOS, PAD, learn_tokenizer, write_tokenizer
from pgcli.training.micro_batches import MicroBatches
from pgcli.training.new_models import (
    TEXT_SIZES,
    VISION,
    classifier_of,
    max_tokens,
    new_classifier,
    new_two_towers,
    two_towers_of,
)
from pgcli.training.processes import ALONE, Processes
from pgcli.training.row_store import RowStore
from pgcli.training.rows import TrainingRow, TrainingRows
from pgcli.training.settings import TrainingSettings
from pgcli.training.split import check_apart, split_by_image
from pgcli.training.task_data import ImageInput, TaskData
from pgcli.workers.fetcher import Fetcher


@dataclass(frozen=True)
class ImageReading:
    """How images are read: the store of bytes, decoding workers, limits, addresses, and how many
    may not be readable.
    """

    store: RowStore
    workers: int | None = None
    limits: ImageLimits = field(default_factory=ImageLimits)
    fast_decode: bool = False
    fetcher: Fetcher | None = None
    budget: ErrorBudget = field(default_factory=ErrorBudget)


@dataclass(frozen=True)
class Start:
    """The model at its beginning, how images are prepared for it, and its text processor."""

    model: Any
    preprocessing: Preprocessing
    save: Callable[[Path], None]
    texts: TextProcessor | None = None


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


def make_task(
    settings: TrainingSettings,
    train: Sequence[TrainingRow],
    evaluation: Sequence[TrainingRow],
    reading: ImageReading,
    *,
    checkpoint: Checkpoint | None,
    device: str = "auto",
    dtype: str = "auto",
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    processes: Processes = ALONE,
) -> ContrastiveTask | ClassifyTask | ProbeTask:
    """The task of the settings, with its model on the device.

    `track` shows the progress of computing features. Raises UsageError for a checkpoint or labels
    that do not fit the task, and for fewer rows in a batch than processes.
    """
    chosen = choose_device(device)
    if settings.task == "contrastive":
        start = start_towers(settings, train, checkpoint, chosen)
    else:
        start = start_classifier(settings, train, evaluation, checkpoint, chosen)
    vision = start.model.config.vision
    spec = image_spec(vision.resolution, start.preprocessing)
    decoder = ImageDecoder(replace(spec, fast_decode=reading.fast_decode), reading.limits)
    errors = ImageErrors(len(train), reading.budget)
    loader = ImageLoader(reading.store, decoder, errors, reading.workers, reading.fetcher)
    size = min(settings.recipe.batch_size, len(train))
    if size < processes.count:
        raise UsageError(
            f"updates of {size} rows cannot be divided over {processes.count} processes",
            hint="--batch-size with a larger number, more rows or fewer processes",
        )
    order = RowOrder(len(train), size, settings.seed)
    data = TaskData(train, evaluation, order, loader, processes)
    input = ImageInput(
        chosen, compute_dtype(dtype, chosen), start.preprocessing.mean, start.preprocessing.std
    )
    # a process that repeats its part of a contrastive update would exchange vectors alone
    exchanges = processes.count > 1 and settings.task == "contrastive"
    micro = MicroBatches(settings.micro_batch, is_fixed=bool(settings.micro_batch) or exchanges)
    shared: dict[str, Any] = {
        "model": start.model,
        "data": data,
        "input": input,
        "micro_batches": micro,
        "save_to": start.save,
    }
    if settings.task == "contrastive":
        assert start.texts is not None
        loss = chosen_loss(settings, start.model)
        if settings.probe:
            freeze_towers(start.model)
        return ContrastiveTask(**shared, texts=start.texts, loss=loss)
    task = ClassifyTask(**shared, label_smoothing=settings.label_smoothing)
    return ProbeTask(task, track) if settings.probe else task


def start_towers(
    settings: TrainingSettings,
    rows: Sequence[TrainingRow],
    checkpoint: Checkpoint | None,
    device: torch.device,
) -> Start:
    """Two towers of a checkpoint, or new ones with a tokenizer learned from the texts."""
    if checkpoint is not None:
        folder, description = checkpoint.folder, read_description(checkpoint.folder)
        model = two_towers_of(folder, description, device)
        texts = text_processor(folder, description)
        assert texts is not None
        preprocessing = image_preprocessing(folder, description)
        save = partial(_save_towers, model, texts.format.pad, folder, preprocessing)
        return Start(model, preprocessing, save, texts)
    assert settings.init is not None
    tokenizer = learn_tokenizer(
        (canonical_text(row.target) for row in rows), max_tokens=max_tokens(settings.init)
    )
    length = TEXT_SIZES[settings.init][1]
    format = TextFormat(length, bos=None, eos=EOS, pad=PAD, clean=canonical_text)
    model = new_two_towers(
        settings.init,
        tokens=tokenizer.get_vocab_size(),
        loss=settings.loss or "sigmoid",
        seed=settings.seed,
    ).to(device)
    preprocessing = Preprocessing()

    def save_new(target: Path) -> None:
        _save_towers(model, PAD, None, preprocessing, target)
        write_tokenizer(target, tokenizer, max_positions=length)

    return Start(model, preprocessing, save_new, TextProcessor(tokenizer, format))


def start_classifier(
    settings: TrainingSettings,
    train: Sequence[TrainingRow],
    evaluation: Sequence[TrainingRow],
    checkpoint: Checkpoint | None,
    device: torch.device,
) -> Start:
    """A classifier of the labels of the rows."""
    labels = sorted({row.target for row in train})
    if len(labels) < 2:
        raise UsageError(
            f"all rows have the label {labels[0]}", hint="a classifier needs two labels or more"
        )
    if unknown := sorted({row.target for row in evaluation} - {*labels}):
        raise UsageError(
            f"rows to evaluate on have the label {unknown[0]}, and no row to train on has it",
            hint="give rows of it, or leave it out of --eval",
        )
    if checkpoint is None:
        assert settings.init is not None
        model = new_classifier(settings.init, labels, seed=settings.seed).to(device)
        resolution = VISION[settings.init].resolution
        preprocessing = Preprocessing(resample=2)  # bilinear, as ViT's image processor
        source = None
    else:
        source, description = checkpoint.folder, read_description(checkpoint.folder)
        model = classifier_of(source, description, labels, device)
        resolution = model.config.vision.resolution
        preprocessing = image_preprocessing(source, description)
        if description.kind == "paligemma":
            source = None  # its files are those of PaliGemma's processor

    def save(folder: Path) -> None:
        save_classifier(model, folder, dtype=torch.float32)
        _write_image_files(source, folder, model.config.family, resolution, preprocessing)

    return Start(model, preprocessing, save)


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of products: on GPUs that have it bfloat16, on CPUs float32 unless asked for.

    Weights, their gradients and the optimizer's moments are always in float32.
    """
    return choose_dtype(name, device, checkpoint_bytes=0)


def chosen_loss(settings: TrainingSettings, model: TwoTowers) -> Any:
    """The loss that is asked for, or that of the model's family. Raises UsageError."""
    if settings.loss == "sigmoid" and model.logit_bias is None:
        raise UsageError(
            "--loss sigmoid learns a bias, which CLIP's checkpoints do not have",
            hint="--loss softmax, or a SigLIP checkpoint",
        )
    return settings.loss or ("softmax" if model.logit_bias is None else "sigmoid")


def freeze_towers(model: TwoTowers) -> None:
    """Leave only the pooling, the projections, the scale and the bias to be trained."""
    for tower in (model.vision, model.text):
        if tower is not None:
            tower.requires_grad_(requires_grad=False)


def _save_towers(
    model: TwoTowers, pad: int, source: Path | None, preprocessing: Preprocessing, folder: Path
) -> None:
    save_two_towers(model, folder, dtype=torch.float32, pad_token=pad)
    if source is not None:
        copy_files(source, folder, TOKENIZER_FILES)
    is_clip = model.config.family == "clip"
    resolution = model.config.vision.resolution
    _write_image_files(source, folder, "clip" if is_clip else "siglip", resolution, preprocessing)


def _write_image_files(
    source: Path | None,
    folder: Path,
    family: Family,
    resolution: int,
    preprocessing: Preprocessing,
) -> None:
    """Copy the files of the checkpoint, or write one with the same values."""
    if source is None or not copy_files(source, folder, IMAGE_PROCESSOR_FILES):
        write_image_processor(folder, family, resolution, preprocessing)
