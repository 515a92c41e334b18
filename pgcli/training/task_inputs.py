"""What the task of a run is made of: settings, rows, a checkpoint and a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import choose_dtype
from pgcli.engine.image_spec import image_spec
from pgcli.errors import UsageError
from pgcli.images import ImageDecoder, ImageLimits
from pgcli.run.progress.tally import ErrorBudget
from pgcli.stores import Reader
from pgcli.training.data import RowOrder, TrainingData
from pgcli.training.processes import ALONE, Processes
from pgcli.training.row_errors import RowErrors
from pgcli.training.rows import RowStore, TrainingRow, TrainingRows
from pgcli.training.settings import TrainingSettings


@dataclass(frozen=True)
class ImageReading:
    """How images are read: the store of bytes, decoding workers, limits, addresses, and how many
    may not be readable. `faults` are rows that were lost before their images were read.

    `make_reader` makes a reader of addresses; None if these are not allowed.
    """

    store: RowStore
    workers: int | None = None
    limits: ImageLimits = field(default_factory=ImageLimits)
    fast_decode: bool = False
    make_reader: Callable[[], Reader | None] = lambda: None
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    faults: int = 0


@dataclass(frozen=True)
class TaskInputs:
    """The inputs of a task; `track` shows the progress of computing features.

    With `lengths`, rows of about the same length are computed together.
    """

    settings: TrainingSettings
    train: Sequence[TrainingRow]
    evaluation: Sequence[TrainingRow]
    reading: ImageReading
    checkpoint: Checkpoint | None
    device: torch.device
    dtype: str = "auto"
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter
    processes: Processes = ALONE
    lengths: Sequence[int] | None = None

    @property
    def batch_size(self) -> int:
        """The rows of an update. Raises UsageError if there are fewer than processes."""
        size = min(self.settings.recipe.batch_size, len(self.train))
        if size < self.processes.count:
            raise UsageError(
                f"updates of {size} rows cannot be divided over {self.processes.count} processes",
                hint="--batch-size with a larger number, more rows or fewer processes",
            )
        return size

    def data(self, resolution: int, preprocessing: Preprocessing) -> TrainingData:
        """The rows in order, with their images for a model."""
        reading = self.reading
        spec = replace(image_spec(resolution, preprocessing), fast_decode=reading.fast_decode)
        return TrainingData(
            self.train,
            self.evaluation,
            self.order,
            reading.store,
            ImageDecoder(spec, reading.limits),
            RowErrors(reading.budget, len(self.train) + reading.faults, reading.faults),
            reading.workers,
            reading.make_reader,
            self.processes,
        )

    @property
    def steps_per_epoch(self) -> int:
        """The updates in which each row is seen once."""
        return self.order.steps_per_epoch

    @property
    def order(self) -> RowOrder:
        """Which rows each update has."""
        return RowOrder(len(self.train), self.batch_size, self.settings.seed, self.lengths)

    @property
    def shards(self) -> int:
        """The processes over which the weights are divided: those of PaliGemma that are trained."""
        is_full = self.settings.task == "answer" and self.settings.answer.method == "full"
        return self.processes.count if is_full else 1

    def images(self, *, with_evaluation: bool = False) -> Sequence[TrainingRow]:
        """The first row of each image to train on, and maybe of those to evaluate on."""
        rows = [*self.train, *(self.evaluation if with_evaluation else ())]
        if isinstance(self.train, TrainingRows) and not with_evaluation:
            return self.train.images()
        return [*{row.image_key: row for row in reversed(rows)}.values()][::-1]

    def count_images(self) -> int:
        """The number of different images to train on."""
        return len(self.images())

    def products_of(self, weights: torch.dtype) -> torch.dtype:
        """The dtype to which autocast converts weights for products; float32 if it does not.

        Of float32 weights it is bfloat16 on GPUs that have it, on CPUs only if asked for. Weights
        that are trained, gradients and the optimizer's moments are always in float32.
        """
        if weights != torch.float32:
            return torch.float32
        return choose_dtype(self.dtype, self.device, checkpoint_bytes=0)
