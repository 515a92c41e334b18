"""The beginning of two towers and classifiers: their weights, image preprocessing and texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pgcli.checkpoints.model_description import image_preprocessing, read_description
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.processor_files import (
    IMAGE_PROCESSOR_FILES,
    TOKENIZER_FILES,
    copy_files,
    write_image_processor,
)
from pgcli.checkpoints.save_towers import save_classifier, save_two_towers
from pgcli.checkpoints.tower_config import Family
from pgcli.embedding.loader import text_processor
from pgcli.embedding.texts import TextFormat, TextProcessor, canonical_text
from pgcli.errors import UsageError
from pgcli.model.two_towers import TwoTowers
from pgcli.training.learned_tokenizer import EOS, PAD, learn_tokenizer, write_tokenizer
from pgcli.training.new_models import (
    TEXT_SIZES,
    VISION,
    classifier_of,
    max_tokens,
    new_classifier,
    new_two_towers,
    two_towers_of,
)
from pgcli.training.settings import TrainingSettings
from pgcli.training.task_inputs import TaskInputs


@dataclass(frozen=True)
class Start:
    """The model at its beginning, how images are prepared for it, and its text processor."""

    model: Any
    preprocessing: Preprocessing
    save: Callable[[Path], None]
    texts: TextProcessor | None = None


def start_towers(inputs: TaskInputs) -> Start:
    """Two towers of a checkpoint, or new ones with a tokenizer learned from the texts."""
    settings, checkpoint, device = inputs.settings, inputs.checkpoint, inputs.device
    if checkpoint is not None:
        folder, description = checkpoint.folder, read_description(checkpoint.folder)
        if description.kind != "two_towers":
            raise UsageError(
                f"{checkpoint.name} has no text tower, which --task contrastive trains",
                hint="name SigLIP or CLIP, or begin with --init small",
            )
        model = two_towers_of(folder, description, device)
        texts = text_processor(folder, description)
        assert texts is not None
        preprocessing = image_preprocessing(folder, description)
        save = partial(_save_towers, model, texts.format.pad, folder, preprocessing)
        return Start(model, preprocessing, save, texts)
    assert settings.init is not None
    tokenizer = learn_tokenizer(
        (canonical_text(row.target) for row in inputs.train), max_tokens=max_tokens(settings.init)
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


def start_classifier(inputs: TaskInputs) -> Start:
    """A classifier of the labels of the rows."""
    settings, checkpoint, device = inputs.settings, inputs.checkpoint, inputs.device
    labels = sorted({row.target for row in inputs.train})
    if len(labels) < 2:
        raise UsageError(
            f"all rows to train on have the label {labels[0]}",
            hint="a classifier needs two labels or more",
        )
    if unknown := sorted({row.target for row in inputs.evaluation} - {*labels}):
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
