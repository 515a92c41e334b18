"""The interface of training tasks: a model, its batches, their loss and its evaluation.

B rows · R resolution · C channels
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import choose_device, choose_dtype
from pgcli.engine.memory import OutOfMemory, run_or_free
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.images import ImageDecoder
from pgcli.model.siglip import normalize_pixels
from pgcli.run.events import OnEvent, ignore
from pgcli.text import count
from pgcli.training.data import ImageBatch, RowOrder, TrainingData
from pgcli.training.options import TrainOptions
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import RowErrors, RowKey, TrainingRows

Model = TypeVar("Model", bound=nn.Module)
Result = TypeVar("Result")
Metrics: TypeAlias = Mapping[str, float]  # the values of an evaluation by name


class Loss(NamedTuple):
    """The sum of the rows' losses, and its weight: the row count.

    `sums` has sums of other metrics, reported as means; `tokens` counts the computed tokens.
    """

    sum: Tensor
    weight: float
    sums: Mapping[str, float] = {}
    tokens: int = 0


@dataclass
class MicroBatches:
    """The size of micro-batches in rows; None for the whole batch.

    Halved when memory runs out, unless it `is_fixed`. Before that, `save_memory` is called, which
    returns whether rows need less memory now. `forward_rows`, the size without gradients, is halved
    separately, so that updates do not change.
    """

    rows: int | None = None
    is_fixed: bool = False
    forward_rows: int | None = None
    save_memory: Callable[[], bool] = lambda: False

    def ranges(self, total: int) -> Iterator[tuple[int, int]]:
        """The start and stop of each micro-batch."""
        rows = self.rows or max(1, total)
        for start in range(0, total, rows):
            yield start, min(start + rows, total)

    def halve(self, total: int) -> None:
        """Save memory after `total` rows did not fit. Raises NoUsableDevice for a single row."""
        if not self.save_memory():
            self.rows = self._half(total, "train on")

    def forward(self, total: int, compute: Callable[[int, int], Result]) -> Iterator[Result]:
        """The results of `compute(start, stop)` for each micro-batch, without gradients.

        Raises NoUsableDevice if a single row does not fit.
        """
        start = 0
        while start < total:
            stop = min(start + (self.forward_rows or self.rows or total), total)
            try:
                result = run_or_free(lambda start=start, stop=stop: compute(start, stop))  # type: ignore[misc]
            except OutOfMemory:
                self.forward_rows = self._half(stop - start, "compute")
                continue
            yield result
            start = stop

    def _half(self, rows: int, purpose: str) -> int:
        """Half of `rows`, which did not fit. Raises NoUsableDevice for a single row."""
        if self.is_fixed or rows == 1:
            raise NoUsableDevice(
                f"the device has no memory left to {purpose} {count(rows, 'row')} at once",
                hint="<--micro-batch=> with a smaller number, a smaller model or another "
                "<--device=>",
            ) from None
        return rows // 2


def sum_over_chunks(
    loss_of_rows: Callable[[int, int], Tensor], rows: int, chunk_rows: int | None
) -> Tensor:
    """The sum of the losses of consecutive chunks of rows.

    The backward pass recomputes the logits of a chunk, so memory holds the logits of one chunk.
    """
    if chunk_rows is None or chunk_rows >= rows:
        return loss_of_rows(0, rows)
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, not {chunk_rows}")
    losses = [
        checkpoint(loss_of_rows, start, min(start + chunk_rows, rows), use_reentrant=False)
        for start in range(0, rows, chunk_rows)
    ]
    return torch.stack(losses).sum()


class TrainingTask(ABC):
    """The model, the data and the loss of a run, for the trainer.

    Parameters of the model without gradient are frozen, and not part of the saved state.
    """

    model: Any
    main_metric: str | None = None
    micro_batches = MicroBatches(is_fixed=True)

    @abstractmethod
    def batches(self, first: int, stop: int) -> Generator[Any]:
        """The batches of steps `first` to `stop - 1`, each determined by its step alone.

        With several processes, this process's share of each update's rows.
        """

    @abstractmethod
    def loss(self, part: Any) -> Loss:
        """The loss of a micro-batch; an update uses the mean over all of them."""

    @abstractmethod
    def evaluate(self) -> Metrics:
        """`loss` and the task's metrics on the evaluation rows."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the model into the folder, for `--model` or `--adapter`."""

    def size(self, batch: Any) -> int:
        """The number of rows of the batch."""
        return len(batch[0])

    def parts(self, batch: Any) -> Iterable[Any]:
        """The micro-batches of the batch."""
        return [batch]

    def is_better(self, metrics: Metrics, best: Metrics) -> bool:
        """Whether an evaluation has a higher main metric than the best so far, or a lower loss.

        The loss decides ties, and tasks without a main metric.
        """
        value, best_value = (values.get(self.main_metric or "", 0.0) for values in (metrics, best))
        return value > best_value if value != best_value else metrics["loss"] < best["loss"]


@dataclass(kw_only=True)
class ImageTask(TrainingTask, Generic[Model]):
    """The common part of tasks on images; `save_to` writes the model.

    Weights are in float32, matrix products in `dtype`.
    """

    model: Model
    data: TrainingData
    preprocessing: Preprocessing
    device: torch.device
    dtype: torch.dtype
    save_to: Callable[[Path], None]
    micro_batches: MicroBatches = field(default_factory=MicroBatches)

    def batches(self, first: int, stop: int) -> Generator[Any]:
        yield from self.data.batches(first, stop)

    def size(self, batch: Any) -> int:
        return len(batch.rows)

    def parts(self, batch: Any) -> Iterable[Any]:
        for start, stop in self.micro_batches.ranges(len(batch.rows)):
            yield batch.part(start, stop)

    def pixels(self, batch: ImageBatch) -> Tensor:
        """The normalized images (B, C, R, R) for the vision tower."""
        mean = torch.tensor(self.preprocessing.mean, device=self.device)
        std = torch.tensor(self.preprocessing.std, device=self.device)
        return normalize_pixels(batch.pixels_BRRC.to(self.device), mean, std, torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """A block with matrix products in `dtype`."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def in_parts(self, batch: Any, compute: Callable[[Any], Result]) -> list[Result]:
        """The values of `compute`, without gradients, for micro-batches that fit into memory.

        Raises NoUsableDevice if a single row does not fit.
        """
        parts = self.micro_batches.forward(
            len(batch.rows), lambda start, stop: compute(batch.part(start, stop))
        )
        return [*parts]

    def save(self, folder: Path) -> None:
        self.save_to(folder)

    @property
    def order(self) -> RowOrder:
        return self.data.order

    @property
    def faults(self) -> Mapping[RowKey, str]:
        """The reasons for unreadable images and unusable rows."""
        return self.data.errors.reasons


@dataclass(frozen=True)
class TaskInputs:
    """The parts of a task: options, rows and a checkpoint.

    `faults` counts rows that were unusable before their images are read. `on_event` receives the
    progress of computing features. With `lengths`, micro-batches have rows of similar length.
    """

    options: TrainOptions
    train: TrainingRows
    evaluation: TrainingRows
    checkpoint: Checkpoint | None
    faults: int = 0
    on_event: OnEvent = ignore
    processes: Processes = ALONE
    lengths: Sequence[int] | None = None

    @cached_property
    def device(self) -> torch.device:
        """The device of the options. Raises NoUsableDevice."""
        return choose_device(self.options.device)

    @property
    def order(self) -> RowOrder:
        """The rows of each update. Raises UsageError if they are fewer than the processes."""
        size = min(self.options.recipe.batch_size, len(self.train))
        if size < self.processes.count:
            raise UsageError(
                f"updates of {count(size, 'row')} cannot be divided over "
                f"{self.processes.count} processes",
                hint="<--batch-size=> with a larger number, more rows or fewer processes",
            )
        return RowOrder(len(self.train), size, self.options.seed, self.lengths)

    def fields(
        self,
        model: Any,
        preprocessing: Preprocessing,
        save_to: Callable[[Path], None],
        micro_batches: MicroBatches,
        weights: torch.dtype = torch.float32,
    ) -> dict[str, Any]:
        """The fields of an ImageTask, for a model with weights of this dtype.

        Autocast converts float32 weights for matrix products: to bfloat16 on GPUs with bfloat16, on
        CPUs only with `--dtype`. Trained weights, gradients and optimizer moments are always in
        float32.
        """
        options, products = self.options, torch.float32
        if weights == torch.float32:
            products = choose_dtype(options.dtype, self.device, checkpoint_bytes=0)
        spec = preprocessing.image_spec(model.config.vision.resolution)
        data = TrainingData(
            self.train,
            self.evaluation,
            self.order,
            self.train.store,
            ImageDecoder(replace(spec, fast_decode=options.fast_decode), options.image_limits),
            RowErrors(options.error_budget, len(self.train) + self.faults, self.faults),
            options.workers,
            options.make_reader,
            self.processes,
        )
        return {
            "model": model,
            "data": data,
            "preprocessing": preprocessing,
            "device": self.device,
            "dtype": products,
            "save_to": save_to,
            "micro_batches": micro_batches,
        }
