"""What the tasks on images share beside their losses: batches, faults, and the saved model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from pgcli.training.feature_store import FeatureBatch
from pgcli.training.image_batches import ImageBatch, RowOrder
from pgcli.training.micro_batches import MicroBatches
from pgcli.training.task_data import ImageInput, TaskData
from pgcli.training.training_row import RowKey

Model = TypeVar("Model", bound=nn.Module)
Result = TypeVar("Result")
Batch = TypeVar("Batch", ImageBatch, FeatureBatch)


@dataclass(kw_only=True)
class ImageTask(Generic[Model]):
    """Trains a model on decoded images; `save_to` writes it into a folder."""

    model: Model
    data: TaskData
    input: ImageInput
    micro_batches: MicroBatches
    save_to: Callable[[Path], None]

    def batches(self, first: int, stop: int) -> Generator[Any]:
        yield from self.data.batches(first, stop)

    def weight(self, batch: Any) -> float:
        return len(batch.rows)

    def in_parts(self, batch: Batch, compute: Callable[[Batch], Result]) -> list[Result]:
        """The values of `compute`, without gradients, of the parts of a batch that fit into memory.

        Raises NoUsableDevice if a single row does not.
        """

        def compute_part(start: int, stop: int) -> Result:
            return compute(batch.part(start, stop))

        return [*self.micro_batches.forward(len(batch.rows), compute_part)]

    def save(self, folder: Path) -> None:
        self.save_to(folder)

    @property
    def order(self) -> RowOrder:
        return self.data.order

    @property
    def faults(self) -> Mapping[RowKey, str]:
        """Why images could not be read, and rows not be used."""
        return self.data.loader.errors.reasons
