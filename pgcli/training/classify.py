"""The training task of a classifier, or of its linear layer on precomputed features.

B rows · N images · D width · K classes
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.checkpoints.config import image_preprocessing, read_description
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.save import save_encoder
from pgcli.errors import UsageError
from pgcli.model.siglip import ImageClassifier
from pgcli.run.events import tracked
from pgcli.training.encoders import (
    classifier_of,
    new_classifier,
    write_image_files,
)
from pgcli.training.rows import TrainingRow
from pgcli.training.task import ImageBatch, ImageTask, Loss, Metrics, MicroBatches, TaskInputs


@dataclass(frozen=True)
class FeatureBatch:
    """Features (B, D) for the linear layer, and their rows; `lost` counts rows without any."""

    feature_BD: Tensor
    rows: Sequence[TrainingRow]
    lost: int = 0

    def part(self, start: int, stop: int) -> FeatureBatch:
        """The rows from `start` to before `stop`."""
        return FeatureBatch(self.feature_BD[start:stop], self.rows[start:stop])


AnyBatch = ImageBatch | FeatureBatch


@dataclass(kw_only=True)
class ClassifyTask(ImageTask[ImageClassifier]):
    """Trains a classifier by the mean cross-entropy of the labels, over the rows of a batch.

    `feature_ND`, if set, has the inputs of the linear layer; `feature_keys` has the position of
    each `image_key`.
    """

    main_metric = "accuracy"
    feature_ND: Tensor | None = None
    feature_keys: Mapping[str, int] = field(default_factory=dict)

    def batches(self, first: int, stop: int) -> Generator[AnyBatch]:
        if self.feature_ND is None:
            yield from self.data.batches(first, stop)
        else:
            yield from map(self._feature_batch, self.data.row_batches(first, stop))

    def loss(self, batch: AnyBatch) -> Loss:
        label_B, logit_BK = self._labels(batch.rows), self._logits(batch)
        return Loss(
            self._loss_sum(logit_BK, label_B),
            len(batch.rows),
            {"accuracy": _count_right(logit_BK, label_B)},
        )

    def evaluate(self) -> Metrics:
        """The loss, and the share of rows with the right label."""
        loss = right = total = 0.0
        rows, size = self.data.evaluation, self.data.order.batch_size
        batches: Iterable[AnyBatch] = self.data.in_order(rows)
        if self.feature_ND is not None:
            parts = (rows[start : start + size] for start in range(0, len(rows), size))
            batches = filter(lambda batch: batch.rows, map(self._feature_batch, parts))
        for batch in batches:
            label_B = self._labels(batch.rows)
            logit_BK = torch.cat(self.in_parts(batch, self._logits))
            loss += self._loss_sum(logit_BK, label_B).item()
            right += _count_right(logit_BK, label_B)
            total += len(batch.rows)
        return {"loss": loss / total, "accuracy": right / total}

    def fill_features(self, track: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> None:
        """Compute the features of all images for the linear layer, once.

        Each process computes a share, always in the same batches, so a resumed run has the same
        features. Raises TooManyErrors if all images are unreadable.
        """
        data, processes = self.data, self.data.processes
        keys, features = list[str](), list[Tensor]()
        self.model.eval()
        with torch.no_grad(), self.autocast():
            for rows in filter(None, (data.train, data.evaluation)):
                images = [*{row.image_key: row for row in rows}.values()]
                for batch in track(data.in_order(images, processes)):
                    features += self.in_parts(batch, self._encode)
                    keys += [row.image_key for row in batch.rows]
        shares = processes.gather((keys, torch.cat(features) if features else torch.empty(0)))
        known = [key for keys, _ in shares for key in keys]
        if not known:
            raise data.none_read(data.train)
        self.feature_keys = {key: number for number, key in enumerate(known)}
        self.feature_ND = torch.cat([share_ND for _, share_ND in shares if len(share_ND)])

    def _feature_batch(self, rows: Sequence[TrainingRow]) -> FeatureBatch:
        """The rows with their features, without rows of unreadable images."""
        assert self.feature_ND is not None
        known = [row for row in rows if row.image_key in self.feature_keys]
        numbers = [self.feature_keys[row.image_key] for row in known]
        return FeatureBatch(self.feature_ND[numbers], known, len(rows) - len(known))

    def _encode(self, batch: ImageBatch) -> Tensor:
        """The features for the linear layer (B, D), on the CPU."""
        return self.model.features(self.pixels(batch)).float().cpu()

    def _logits(self, batch: AnyBatch) -> Tensor:
        if isinstance(batch, FeatureBatch):
            return self.model.classifier(batch.feature_BD.to(self.device))  # type: ignore[no-any-return]
        with self.autocast():
            logit_BK: Tensor = self.model(self.pixels(batch))
        return logit_BK.float()

    def _labels(self, rows: Sequence[TrainingRow]) -> Tensor:
        """The class numbers (B,)."""
        number = {label: index for index, label in enumerate(self.model.config.labels)}
        numbers = [number[row.target] for row in rows]
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    def _loss_sum(self, logit_BK: Tensor, label_B: Tensor) -> Tensor:
        return F.cross_entropy(logit_BK, label_B, reduction="sum")


def _count_right(logit_BK: Tensor, label_B: Tensor) -> float:
    return (logit_BK.argmax(1) == label_B).sum().item()


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
