"""Prepares the training of two towers and classifiers: weights, preprocessing and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from pgcli.checkpoints.families.encoders import FamilyName
from pgcli.checkpoints.files import IMAGE_PROCESSOR_FILES, TOKENIZER_FILES
from pgcli.checkpoints.model_description import image_preprocessing, read_description
from pgcli.checkpoints.preprocessing import Preprocessing, write_image_processor
from pgcli.checkpoints.save import copy_files, save_encoder
from pgcli.errors import UsageError
from pgcli.run.events import Message, tracked
from pgcli.text import count
from pgcli.towers.loader import text_processor
from pgcli.towers.texts import TextFormat, TextProcessor, canonical_text
from pgcli.training.classify import ClassifyTask
from pgcli.training.contrastive_task import ContrastiveTask
from pgcli.training.encoders import (
    TEXT_SIZES,
    classifier_of,
    new_classifier,
    new_two_towers,
    two_towers_of,
)
from pgcli.training.learned_tokenizer import EOS, PAD, learn_tokenizer, write_tokenizer
from pgcli.training.task import MicroBatches, TaskInputs

ENCODED_TEXTS = 1000  # that are in memory at once


def make_contrastive_task(inputs: TaskInputs) -> ContrastiveTask:
    """The task for two towers from a checkpoint, or for new ones with a learned tokenizer.

    Raises UsageError for a checkpoint of another kind, and for an unsuitable loss.
    """
    options, checkpoint, source = inputs.options, inputs.checkpoint, None
    save_tokenizer: Callable[[Path], object]
    if checkpoint is not None:
        source, description = checkpoint.folder, read_description(checkpoint.folder)
        if description.kind != "two_towers":
            raise UsageError(
                f"{checkpoint.name} has no text tower, and <--task contrastive> trains one",
                hint="name SigLIP or CLIP, or begin with <--init small>",
            )
        model = two_towers_of(source, description, inputs.device)
        texts = text_processor(source, description)
        assert texts is not None
        preprocessing = image_preprocessing(source, description)
        save_tokenizer = partial(copy_files, source, names=TOKENIZER_FILES)
    else:
        assert options.init is not None
        targets = (canonical_text(row.target) for row in inputs.train)
        _, length, max_tokens = TEXT_SIZES[options.init]
        tokenizer = learn_tokenizer(targets, max_tokens=max_tokens)
        format = TextFormat(length, bos=None, eos=EOS, pad=PAD, clean=canonical_text)
        texts = TextProcessor(tokenizer, format)
        model = new_two_towers(
            options.init,
            tokens=tokenizer.get_vocab_size(),
            loss=options.loss or "sigmoid",
            seed=options.seed,
        ).to(inputs.device)
        preprocessing = Preprocessing()
        save_tokenizer = partial(write_tokenizer, tokenizer=tokenizer, max_positions=length)
    if options.loss == "sigmoid" and model.logit_bias is None:
        raise UsageError(
            "<--loss sigmoid> learns a bias, which CLIP's checkpoints do not have",
            hint="<--loss softmax>, or a SigLIP checkpoint",
        )
    has_sigmoid = model.logit_bias is not None and model.config.has_sigmoid
    loss = options.loss or ("sigmoid" if has_sigmoid else "softmax")
    model.config = replace(model.config, has_sigmoid=loss == "sigmoid")
    if options.probe:  # trains the pooling, the projections, the scale and the bias
        for tower in filter(None, (model.vision, model.text)):
            tower.requires_grad_(requires_grad=False)

    def save(folder: Path) -> None:
        save_encoder(model, folder, dtype=torch.float32, pad_token=texts.format.pad)
        save_tokenizer(folder)
        family: FamilyName = "clip" if model.config.family == "clip" else "siglip"
        resolution = model.config.vision.resolution
        write_image_files(source, folder, family, resolution, preprocessing)

    every_text = [row.target for row in (*inputs.train, *inputs.evaluation)]
    if truncated := count_truncated(every_text, texts):
        what = f"truncated {count(truncated, 'text')} to the length of the model's input"
        inputs.on_event(Message(what))
    # a process that repeats its part of an update would exchange vectors alone
    is_fixed = bool(options.micro_batch) or inputs.processes.count > 1
    micro_batches = MicroBatches(options.micro_batch, is_fixed=is_fixed)
    fields = inputs.fields(model, preprocessing, save, micro_batches)
    return ContrastiveTask(**fields, texts=texts, loss_name=loss)


def count_truncated(targets: Sequence[str], texts: TextProcessor) -> int:
    """The number of the texts that are longer than the model's input."""
    starts = range(0, len(targets), ENCODED_TEXTS)
    chunks = (targets[start : start + ENCODED_TEXTS] for start in starts)
    return sum(
        text in cut for chunk in chunks for cut in [texts.truncated(chunk)] for text in chunk
    )


def make_classify_task(inputs: TaskInputs) -> ClassifyTask:
    """The task for a classifier of the rows' labels. Raises UsageError for unsuitable labels."""
    options, checkpoint = inputs.options, inputs.checkpoint
    labels = sorted({row.target for row in inputs.train})
    if len(labels) < 2:
        raise UsageError(
            f"all rows to train on have the label {labels[0]}",
            hint="a classifier needs two labels or more",
        )
    if unknown := sorted({row.target for row in inputs.evaluation} - {*labels}):
        raise UsageError(
            f"no row to train on has the label {unknown[0]} of the rows to evaluate on",
            hint="add rows with this label to the sources, or remove them from <--eval=>",
        )
    if checkpoint is None:
        assert options.init is not None
        model = new_classifier(options.init, labels, seed=options.seed).to(inputs.device)
        preprocessing = Preprocessing(resample=2)  # bilinear, as ViT's image processor
        source = None
    else:
        source, description = checkpoint.folder, read_description(checkpoint.folder)
        model = classifier_of(source, description, labels, inputs.device)
        preprocessing = image_preprocessing(source, description)
        if description.kind == "paligemma":
            source = None  # its files belong to PaliGemma's processor

    def save(folder: Path) -> None:
        save_encoder(model, folder, dtype=torch.float32)
        resolution = model.config.vision.resolution
        write_image_files(source, folder, model.config.family, resolution, preprocessing)

    micro_batches = MicroBatches(options.micro_batch, is_fixed=bool(options.micro_batch))
    fields = inputs.fields(model, preprocessing, save, micro_batches)
    task = ClassifyTask(**fields)
    if options.probe:
        model.vision.requires_grad_(requires_grad=False)
        track = partial(tracked, on_event=inputs.on_event, unit="batches")
        task.fill_features(partial(track, task="computing features"))
    return task


def write_image_files(
    source: Path | None,
    folder: Path,
    family: FamilyName,
    resolution: int,
    preprocessing: Preprocessing,
) -> None:
    """Copy the image processor files of the checkpoint, or write an equivalent one."""
    if source is None or not copy_files(source, folder, IMAGE_PROCESSOR_FILES):
        write_image_processor(folder, family, resolution, preprocessing)
