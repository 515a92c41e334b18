"""What the tasks on images share: rows in order, decoded images, and the model's input.

B rows · R resolution · C channels
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from pgcli.errors import TooManyErrors
from pgcli.model.siglip import normalize_pixels
from pgcli.training.image_batches import ImageBatch, ImageLoader, RowOrder
from pgcli.training.processes import ALONE, Processes
from pgcli.training.training_row import TrainingRow


@dataclass(frozen=True)
class ImageInput:
    """Normalizes pixels on the device. Weights stay in float32, products are of the `dtype`."""

    device: torch.device
    dtype: torch.dtype
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def pixels(self, batch: ImageBatch) -> Tensor:
        """The images (B, C, R, R) as the vision tower takes them."""
        mean = torch.tensor(self.mean, device=self.device)
        std = torch.tensor(self.std, device=self.device)
        return normalize_pixels(batch.pixels_BRRC.to(self.device), mean, std, torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """A block whose products are computed in the dtype."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


@dataclass(frozen=True)
class TaskData:
    """The rows to train and to evaluate on, and how their images are read.

    Of several `processes`, each reads its share of every batch to train on. Of a batch to train on
    no image may be left.
    """

    train: Sequence[TrainingRow]
    evaluation: Sequence[TrainingRow]
    order: RowOrder
    loader: ImageLoader
    processes: Processes = ALONE

    def row_batches(self, first: int, stop: int) -> Iterator[list[TrainingRow]]:
        """The rows of the steps."""
        for numbers in map(self.processes.share, self.order.batches(first, stop)):
            yield [self.train[number] for number in numbers]

    def batches(self, first: int, stop: int) -> Generator[ImageBatch]:
        """The batches of the steps."""
        size = min(self.order.batch_size, len(self.train)) // self.processes.count
        yield from self.loader.load(self.row_batches(first, stop), total=(stop - first) * size)

    def in_order(
        self, rows: Sequence[TrainingRow], processes: Processes = ALONE
    ) -> Generator[ImageBatch]:
        """All of the rows whose images can be read, in their order.

        Each of several `processes` has every one of so many batches. Raises TooManyErrors if no
        image can be read.
        """
        size = self.order.batch_size
        starts = processes.share(range(0, len(rows), size))
        batches = (rows[start : start + size] for start in starts)
        total = sum(min(size, len(rows) - start) for start in starts)
        lost = 0
        for batch in self.loader.load(batches, total=total):
            lost += batch.lost
            if batch.rows:
                yield batch
        if lost and lost == len(rows):
            raise self.none_read(rows)

    def none_read(self, rows: Sequence[TrainingRow]) -> TooManyErrors:
        """The error that no image of the rows can be read."""
        name = rows[0].item.id
        reason = self.loader.errors.reasons.get(rows[0].image_id)
        return TooManyErrors(
            f"no image can be read, such as {name}" + (f": {reason}" if reason else ""),
            hint="correct the images, then run the same command again",
        )
