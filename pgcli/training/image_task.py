"""What the tasks on images share beside their losses: batches, faults, and the saved model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from pgcli.training.image_batches import RowOrder
from pgcli.training.micro_batches import MicroBatches
from pgcli.training.task_data import ImageInput, TaskData

Model = TypeVar("Model", bound=nn.Module)


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

    def save(self, folder: Path) -> None:
        self.save_to(folder)

    @property
    def order(self) -> RowOrder:
        return self.data.order

    @property
    def faults(self) -> Mapping[str, str]:
        """Why images could not be read, by their ids."""
        return self.data.loader.errors.reasons
