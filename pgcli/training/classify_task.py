"""The tasks of a classifier: all of it, or its linear layer alone on features computed once.

B rows · D width · K classes
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.classifier import ImageClassifier
from pgcli.training.image_batches import ImageBatch, RowOrder
from pgcli.training.image_task import ImageTask
from pgcli.training.training_row import RowKey, TrainingRow


@dataclass(kw_only=True)
class ClassifyTask(ImageTask[ImageClassifier]):
    """Trains a classifier: the mean cross-entropy of the labels, over the rows of a batch."""

    label_smoothing: float

    def backward(self, batch: ImageBatch, total: float) -> Mapping[str, float]:
        rows = len(batch.rows)

        def accumulate() -> tuple[float, float]:
            loss, right = 0.0, 0.0
            for start, stop in self.micro_batches.ranges(rows):
                part = batch.part(start, stop)
                label_B, logit_BK = self._labels(part.rows), self._logits(part)
                part_loss = self._loss_sum(logit_BK, label_B) / total
                part_loss.backward()  # type: ignore[no-untyped-call]
                loss += part_loss.item()
                right += _count_right(logit_BK, label_B)
            return loss, right / total

        loss, accuracy = self.micro_batches.run(self.model, rows, accumulate)
        return {"loss": loss, "accuracy": accuracy, "rows": rows, "lost": batch.lost}

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and the share of rows with the right label."""
        loss = right = total = 0.0
        for batch in self.data.in_order(self.data.evaluation):
            label_B = self._labels(batch.rows)
            logit_BK = torch.cat(self.in_parts(batch, self._logits))
            loss += self._loss_sum(logit_BK, label_B).item()
            right += _count_right(logit_BK, label_B)
            total += len(batch.rows)
        return {"loss": loss / total, "accuracy": right / total}

    def rank(self, found: Mapping[str, float]) -> tuple[float, ...]:
        """The accuracy, and of equal ones the loss."""
        return found["accuracy"], -found["loss"]

    def features(self, batch: ImageBatch) -> Tensor:
        """What the linear layer classifies (B, D)."""
        with self.input.autocast():
            return self.model.features(self.input.pixels(batch)).float()

    def _logits(self, batch: ImageBatch) -> Tensor:
        with self.input.autocast():
            logit_BK: Tensor = self.model(self.input.pixels(batch))
        return logit_BK.float()

    def _labels(self, rows: Sequence[TrainingRow]) -> Tensor:
        """The class numbers (B,)."""
        number = {label: index for index, label in enumerate(self.model.config.labels)}
        numbers = [number[row.target] for row in rows]
        return torch.tensor(numbers, dtype=torch.long, device=self.input.device)

    def _loss_sum(self, logit_BK: Tensor, label_B: Tensor) -> Tensor:
        return F.cross_entropy(
            logit_BK, label_B, reduction="sum", label_smoothing=self.label_smoothing
        )


class EncodedRows(NamedTuple):
    """The features of images (B, D), and their rows."""

    feature_BD: Tensor
    rows: Sequence[TrainingRow]


@dataclass
class ProbeTask:
    """Trains the linear layer of a classifier, whose vision tower stays as it is.

    The features of all images are computed once, always in the same batches, so that a resumed run
    has the same ones, and are held in memory: D float32 values for an image.
    """

    whole: ClassifyTask
    track: Callable[[Iterable[ImageBatch]], Iterable[ImageBatch]] = iter
    train: EncodedRows = field(init=False)
    evaluation: EncodedRows = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.whole.model
        self.model.vision.requires_grad_(requires_grad=False)
        self.train = self._encode(self.whole.data.train)
        self.evaluation = self._encode(self.whole.data.evaluation)
        given = self.whole.data.order
        self.order = RowOrder(len(self.train.rows), given.batch_size, given.seed)

    def batches(self, first: int, stop: int) -> Generator[EncodedRows]:
        for numbers in map(self.whole.data.processes.share, self.order.batches(first, stop)):
            rows = [self.train.rows[number] for number in numbers]
            yield EncodedRows(self.train.feature_BD[numbers], rows)

    def weight(self, batch: EncodedRows) -> float:
        return len(batch.rows)

    def backward(self, batch: EncodedRows, total: float) -> Mapping[str, float]:
        loss, accuracy = self._measure(batch, total)
        loss.backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.item(), "accuracy": accuracy, "rows": len(batch.rows)}

    def evaluate(self) -> Mapping[str, float]:
        loss, accuracy = self._measure(self.evaluation, len(self.evaluation.rows))
        return {"loss": loss.item(), "accuracy": accuracy}

    def rank(self, found: Mapping[str, float]) -> tuple[float, ...]:
        return self.whole.rank(found)

    def save(self, folder: Path) -> None:
        self.whole.save(folder)

    @property
    def faults(self) -> Mapping[RowKey, str]:
        return self.whole.faults

    def _measure(self, batch: EncodedRows, total: float) -> tuple[Tensor, float]:
        """The sum of the losses and the number of right labels, both divided by `total`."""
        label_B = self.whole._labels(batch.rows)
        logit_BK = self.model.classifier(batch.feature_BD)
        loss = self.whole._loss_sum(logit_BK, label_B) / total
        return loss, _count_right(logit_BK, label_B) / total

    def _encode(self, rows: Sequence[TrainingRow]) -> EncodedRows:
        """The features of the rows whose images can be read."""
        self.model.eval()
        found: list[Tensor] = []
        read: list[TrainingRow] = []
        with torch.no_grad():
            for batch in self.track(self.whole.data.in_order(rows)):
                found += self.whole.in_parts(batch, self.whole.features)
                read += batch.rows
        width = self.model.config.vision.width
        empty = torch.empty(0, width, device=self.whole.input.device)
        return EncodedRows(torch.cat([empty, *found]), read)


def _count_right(logit_BK: Tensor, label_B: Tensor) -> float:
    return (logit_BK.argmax(1) == label_B).sum().item()
