"""The beginning of two towers and classifiers: their weights, image preprocessing and texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pgcli.checkpoints.families.encoders import FamilyName
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import image_preprocessing, read_description
from pgcli.checkpoints.preprocessing import Preprocessing, write_image_processor
from pgcli.checkpoints.save import copy_files, save_encoder
from pgcli.checkpoints.weight_files import IMAGE_PROCESSOR_FILES, TOKENIZER_FILES
from pgcli.embedding.loader import text_processor
from pgcli.embedding.texts import TextFormat, TextProcessor, canonical_text
from pgcli.errors import UsageError
from pgcli.model.two_towers import TwoTowers
from pgcli.training.encoders.learned_tokenizer import EOS, PAD, learn_tokenizer, write_tokenizer
from pgcli.training.encoders.new_models import (
    TEXT_SIZES,
    VISION,
    classifier_of,
    max_tokens,
    new_classifier,
    new_two_towers,
    two_towers_of,
)
from pgcli.training.options import TrainOptions
from pgcli.training.rows import TrainingRow
from pgcli.training.task import Start


def start_towers(
    options: TrainOptions,
    checkpoint: Checkpoint | None,
    device: torch.device,
    train: Sequence[TrainingRow],
    evaluation: Sequence[TrainingRow],
) -> Start:
    """Two towers of a checkpoint, or new ones with a tokenizer learned from the texts."""
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
    assert options.init is not None
    tokenizer = learn_tokenizer(
        (canonical_text(row.target) for row in train), max_tokens=max_tokens(options.init)
    )
    length = TEXT_SIZES[options.init][1]
    format = TextFormat(length, bos=None, eos=EOS, pad=PAD, clean=canonical_text)
    model = new_two_towers(
        options.init,
        tokens=tokenizer.get_vocab_size(),
        loss=options.loss or "sigmoid",
        seed=options.seed,
    ).to(device)
    preprocessing = Preprocessing()

    def save_new(target: Path) -> None:
        _save_towers(model, PAD, None, preprocessing, target)
        write_tokenizer(target, tokenizer, max_positions=length)

    return Start(model, preprocessing, save_new, TextProcessor(tokenizer, format))


def start_classifier(
    options: TrainOptions,
    checkpoint: Checkpoint | None,
    device: torch.device,
    train: Sequence[TrainingRow],
    evaluation: Sequence[TrainingRow],
) -> Start:
    """A classifier of the labels of the rows."""
    labels = sorted({row.target for row in train})
    if len(labels) < 2:
        raise UsageError(
            f"all rows to train on have the label {labels[0]}",
            hint="a classifier needs two labels or more",
        )
    if unknown := sorted({row.target for row in evaluation} - {*labels}):
        raise UsageError(
            f"rows to evaluate on have the label {unknown[0]}, and no row to train on has it",
            hint="give rows of it, or leave it out of --eval",
        )
    if checkpoint is None:
        assert options.init is not None
        model = new_classifier(options.init, labels, seed=options.seed).to(device)
        resolution = VISION[options.init].resolution
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
        save_encoder(model, folder, dtype=torch.float32)
        _write_image_files(source, folder, model.config.family, resolution, preprocessing)

    return Start(model, preprocessing, save)


def chosen_loss(options: TrainOptions, model: TwoTowers) -> Any:
    """The loss that is asked for, or that of the model's family. Raises UsageError."""
    if options.loss == "sigmoid" and model.logit_bias is None:
        raise UsageError(
            "--loss sigmoid learns a bias, which CLIP's checkpoints do not have",
            hint="--loss softmax, or a SigLIP checkpoint",
        )
    has_sigmoid = model.logit_bias is not None and model.config.has_sigmoid
    return options.loss or ("sigmoid" if has_sigmoid else "softmax")


def freeze_towers(model: TwoTowers) -> None:
    """Leave only the pooling, the projections, the scale and the bias to be trained."""
    for tower in (model.vision, model.text):
        if tower is not None:
            tower.requires_grad_(requires_grad=False)


def _save_towers(
    model: TwoTowers, pad: int, source: Path | None, preprocessing: Preprocessing, folder: Path
) -> None:
    save_encoder(model, folder, dtype=torch.float32, pad_token=pad)
    if source is not None:
        copy_files(source, folder, TOKENIZER_FILES)
    is_clip = model.config.family == "clip"
    resolution = model.config.vision.resolution
    _write_image_files(source, folder, "clip" if is_clip else "siglip", resolution, preprocessing)


def _write_image_files(
    source: Path | None,
    folder: Path,
    family: FamilyName,
    resolution: int,
    preprocessing: Preprocessing,
) -> None:
    """Copy the files of the checkpoint, or write one with the same values."""
    if source is None or not copy_files(source, folder, IMAGE_PROCESSOR_FILES):
        write_image_processor(folder, family, resolution, preprocessing)
