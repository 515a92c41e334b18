"""The task of a classifier: all of it, or its linear layer alone on features computed once.

B rows · D width · K classes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.classifier import ImageClassifier
from pgcli.training.data import ImageBatch
from pgcli.training.features import FeatureBatch
from pgcli.training.rows import TrainingRow
from pgcli.training.task import ImageTask, Loss

AnyBatch = ImageBatch | FeatureBatch


@dataclass(kw_only=True)
class ClassifyTask(ImageTask[ImageClassifier]):
    """Trains a classifier by the mean cross-entropy of the labels, over the rows of a batch.

    `features`, where there are any, are what the linear layer classifies, of all rows.
    """

    label_smoothing: float = 0.0

    def loss(self, batch: AnyBatch) -> Loss:
        label_B, logit_BK = self._labels(batch.rows), self._logits(batch)
        return Loss(
            self._loss_sum(logit_BK, label_B),
            len(batch.rows),
            {"accuracy": _count_right(logit_BK, label_B)},
        )

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and the share of rows with the right label."""
        loss = right = total = 0.0
        for batch in self._evaluation_batches():
            label_B = self._labels(batch.rows)
            logit_BK = torch.cat(self.in_parts(batch, self._logits))
            loss += self._loss_sum(logit_BK, label_B).item()
            right += _count_right(logit_BK, label_B)
            total += len(batch.rows)
        return {"loss": loss / total, "accuracy": right / total}

    def rank(self, metrics: Mapping[str, float]) -> tuple[float, ...]:
        """The accuracy, and of equal ones the loss."""
        return metrics["accuracy"], -metrics["loss"]

    def encode(self, batch: ImageBatch) -> Tensor:
        """What the linear layer classifies (B, D)."""
        with self.autocast():
            return self.model.features(self.pixels(batch)).float()

    def _evaluation_batches(self) -> Iterable[AnyBatch]:
        rows, size = self.data.evaluation, self.data.order.batch_size
        if self.features is None:
            return self.data.in_order(rows)
        parts = (rows[start : start + size] for start in range(0, len(rows), size))
        return filter(lambda batch: batch.rows, map(self.features.batch, parts))

    def _logits(self, batch: AnyBatch) -> Tensor:
        if isinstance(batch, FeatureBatch):
            return self.model.classifier(batch.feature_BPD.to(self.device))  # type: ignore[no-any-return]
        with self.autocast():
            logit_BK: Tensor = self.model(self.pixels(batch))
        return logit_BK.float()

    def _labels(self, rows: Sequence[TrainingRow]) -> Tensor:
        """The class numbers (B,)."""
        number = {label: index for index, label in enumerate(self.model.config.labels)}
        numbers = [number[row.target] for row in rows]
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    def _loss_sum(self, logit_BK: Tensor, label_B: Tensor) -> Tensor:
        return F.cross_entropy(
            logit_BK, label_B, reduction="sum", label_smoothing=self.label_smoothing
        )


def _count_right(logit_BK: Tensor, label_B: Tensor) -> float:
    return (logit_BK.argmax(1) == label_B).sum().item()
