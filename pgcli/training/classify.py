"""The training task of a classifier, or of its linear layer on precomputed features.

B rows · N images · D width · K classes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from pgcli.records import DecodedImage, Fault
from pgcli.run.events import tracked
from pgcli.training.encoders import (
    classifier_of,
    new_classifier,
    write_image_files,
)
from pgcli.training.rows import TrainingRow
from pgcli.training.task import ImageBatch, ImageTask, Loss, Metrics, MicroBatches, TaskInputs

NO_FEATURES = Fault("io_error", "It could not be read when the features were computed.")


@dataclass(kw_only=True)
class ClassifyTask(ImageTask[ImageClassifier]):
    """Trains a classifier by the mean cross-entropy of the labels, over the rows of a batch.

    With `has_features`, batches have the inputs of the linear layer in place of pixels.
    """

    main_metric = "accuracy"
    has_features: bool = False

    def loss(self, batch: ImageBatch) -> Loss:
        label_B, logit_BK = self._labels(batch.rows), self._logits(batch)
        return Loss(
            self._loss_sum(logit_BK, label_B),
            len(batch.rows),
            {"accuracy": _count_right(logit_BK, label_B)},
        )

    def evaluate(self) -> Metrics:
        """The loss, and the share of rows with the right label."""
        loss = right = total = 0.0
        for batch in self.data.in_order(self.data.evaluation):
            label_B = self._labels(batch.rows)
            logit_BK = torch.cat(self.in_parts(batch, self._logits))
            loss += self._loss_sum(logit_BK, label_B).item()
            right += _count_right(logit_BK, label_B)
            total += len(batch.rows)
        return {"loss": loss / total, "accuracy": right / total}

    def keep_features(self, track: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> None:
        """Compute the features of all images once, and keep them in place of decoded images.

        Each process computes a share, always in the same batches, so a resumed run has the same
        features. Raises TooManyErrors if all images are unreadable.
        """
        data, processes, kept = self.data, self.data.processes, dict[str, DecodedImage]()
        self.model.eval()
        with torch.no_grad(), self.autocast():
            for rows in filter(None, (data.train, data.evaluation)):
                images = [*{row.image_key: row for row in rows}.values()]
                kept |= {
                    row.image_key: DecodedImage(row.item, None, None, None, 0.0, NO_FEATURES)
                    for row in images
                }
                for batch in track(data.in_order(images, processes)):
                    features = torch.cat(self.in_parts(batch, self._encode)).numpy()
                    for row, feature_D in zip(batch.rows, features, strict=True):
                        kept[row.image_key] = DecodedImage(row.item, None, None, feature_D, 0.0)
        data.kept.clear()
        for share in processes.gather(kept):
            data.kept.update(
                {key: own for key, own in share.items() if not own.fault or key not in data.kept}
            )
        self.has_features = True

    def _encode(self, batch: ImageBatch) -> Tensor:
        """The features for the linear layer (B, D), on the CPU."""
        return self.model.features(self.pixels(batch)).float().cpu()

    def _logits(self, batch: ImageBatch) -> Tensor:
        if self.has_features:
            return self.model.classifier(batch.pixels_BRRC.to(self.device))  # type: ignore[no-any-return]
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
        task.keep_features(partial(track, task="computing features"))
    return task
