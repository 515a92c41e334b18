"""The interface of training tasks, and the batches of rows and images that they train on.

B rows · R resolution · C channels
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import choose_device, choose_dtype
from pgcli.engine.memory import OutOfMemory, run_or_free
from pgcli.errors import NoUsableDevice, TooManyErrors, UsageError
from pgcli.images import ImageDecoder
from pgcli.images.pool import decode_ahead
from pgcli.model.siglip import normalize_pixels
from pgcli.records import DecodedImage, Item
from pgcli.run.events import OnEvent, ignore
from pgcli.stores import Reader
from pgcli.text import count
from pgcli.training.options import TrainOptions
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import RowErrors, RowKey, RowStore, TrainingRow, TrainingRows, seed_of

Model = TypeVar("Model", bound=nn.Module)
Result = TypeVar("Result")
Metrics: TypeAlias = Mapping[str, float]  # the values of an evaluation by name
#: Cache for the decoded images of small data sets: 3,500 images of 224 x 224.
KEPT_BYTES = 512 * 2**20


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
    returns whether rows need less memory now.
    """

    rows: int | None = None
    is_fixed: bool = False
    save_memory: Callable[[], bool] = lambda: False

    def ranges(self, total: int) -> Iterator[tuple[int, int]]:
        """The start and stop of each micro-batch."""
        rows = self.rows or max(1, total)
        for start in range(0, total, rows):
            yield start, min(start + rows, total)

    def halve(self, total: int) -> None:
        """Reduce memory use after running out with `total` rows.

        Raises NoUsableDevice for a single row.
        """
        if not self.save_memory():
            if self.is_fixed or total == 1:
                raise NoUsableDevice(
                    f"the device has no memory left for {count(total, 'row')} at once",
                    hint="<--micro-batch=> with a smaller number, a smaller model or another "
                    "<--device=>",
                ) from None
            self.rows = total // 2


def sum_over_chunks(
    loss_of_rows: Callable[[int, int], Tensor], rows: int, chunk_rows: int | None
) -> Tensor:
    """The sum of the losses of consecutive chunks of rows.

    The backward pass recomputes the logits of a chunk, so memory holds the logits of one chunk.
    """
    if chunk_rows is None or chunk_rows >= rows:
        return loss_of_rows(0, rows)
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
        rows = len(batch.rows)
        while True:
            parts = (batch.part(*part) for part in self.micro_batches.ranges(rows))
            try:
                return [run_or_free(partial(compute, part)) for part in parts]
            except OutOfMemory:
                self.micro_batches.halve(min(self.micro_batches.rows or rows, rows))

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


@dataclass(frozen=True)
class ImageBatch:
    """Images (B, R, R, C) and their rows; `lost` counts the rows with unreadable images.

    `sizes` has the widths and heights of the upright images before resizing.
    """

    pixels_BRRC: Tensor
    rows: Sequence[TrainingRow]
    lost: int = 0
    sizes: Sequence[tuple[int, int]] = ()

    def part(self, start: int, stop: int) -> ImageBatch:
        """The rows from `start` to before `stop`."""
        return ImageBatch(self.pixels_BRRC[start:stop], self.rows[start:stop])


@dataclass(frozen=True)
class RowOrder:
    """The rows of each step's batch: each epoch is another permutation of all rows.

    The last batch of an epoch may be smaller. With `lengths`, the rows within a batch are sorted by
    descending length, so that micro-batches need little padding.
    """

    rows: int
    batch_size: int
    seed: int
    lengths: Sequence[int] | None = None

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number of updates per epoch."""
        return max(1, -(-self.rows // self.batch_size))

    def batches(self, first: int, stop: int) -> Iterator[list[int]]:
        """The row numbers of each step."""
        permutation, epoch = torch.empty(0), -1
        for step in range(first, stop):
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
                permutation = torch.randperm(self.rows, generator=generator)
            start = step % self.steps_per_epoch * self.batch_size
            batch = permutation[start : start + self.batch_size].tolist()
            if self.lengths is not None:
                batch.sort(key=self.lengths.__getitem__, reverse=True)
            yield batch


@dataclass(frozen=True)
class TrainingData:
    """The rows to train and to evaluate on; workers decode their images ahead of the model.

    Each of several `processes` reads its share of every training batch, which may be empty.
    `make_reader` makes the reader of images at URLs, a new one for each pass over batches. `kept`
    caches decoded images, or their features, by `image_key`; images up to KEPT_BYTES.
    """

    train: Sequence[TrainingRow]
    evaluation: Sequence[TrainingRow]
    order: RowOrder
    store: RowStore
    decoder: ImageDecoder
    errors: RowErrors
    workers: int | None = None
    make_reader: Callable[[], Reader | None] = lambda: None
    processes: Processes = ALONE
    kept: dict[str, DecodedImage] = field(default_factory=dict)

    def batches(self, first: int, stop: int) -> Generator[ImageBatch]:
        """The batches of the steps. Raises TooManyErrors."""
        size = min(self.order.batch_size, len(self.train)) // self.processes.count
        numbers = map(self.processes.share, self.order.batches(first, stop))
        rows = ([self.train[number] for number in share] for share in numbers)
        yield from self._load(rows, total=(stop - first) * size)

    def in_order(
        self, rows: Sequence[TrainingRow], processes: Processes = ALONE
    ) -> Generator[ImageBatch]:
        """Batches of the rows with readable images, in order.

        The batches are dealt out to the `processes` in turn. Raises TooManyErrors if all images are
        unreadable.
        """
        size = self.order.batch_size
        starts = processes.share(range(0, len(rows), size))
        batches = (rows[start : start + size] for start in starts)
        total = sum(min(size, len(rows) - start) for start in starts)
        lost = 0
        for batch in self._load(batches, total=total):
            lost += batch.lost
            if batch.rows:
                yield batch
        if lost and lost == len(rows):
            reason = self.errors.reasons[rows[0].image_id]
            raise TooManyErrors(
                f"no image can be read, such as {rows[0].item.id}: {reason}",
                hint="correct the images, then run the same command again",
            )

    def _load(self, batches: Iterable[Sequence[TrainingRow]], total: int) -> Iterator[ImageBatch]:
        """The batches with their readable images, possibly none; `total` counts rows."""
        ahead: list[Sequence[TrainingRow]] = []

        def rows() -> Iterator[TrainingRow]:
            for batch in batches:
                ahead.append(batch)
                yield from batch

        decoded = decode_ahead(
            map(self._item, rows()),
            self.decoder,
            workers=self.workers,
            total=total,
            reader=self.make_reader(),
        )
        try:
            while first := next(decoded, None):
                while not ahead[0]:  # this process has no row in a small batch
                    yield self._batch(ahead.pop(0), [])
                batch = ahead.pop(0)
                following = islice(decoded, len(batch) - 1)
                yield self._batch(batch, [first, *filter(None, following)])
            for batch in ahead:
                yield self._batch(batch, [])
        finally:
            decoded.close()

    def _item(self, row: TrainingRow) -> Item | DecodedImage:
        return self.kept.get(row.image_key) or self.store.item(row)

    def _batch(self, rows: Sequence[TrainingRow], images: Sequence[DecodedImage]) -> ImageBatch:
        for row, image in zip(rows, images, strict=True):
            self.errors.add(row.image_id, image.item, image.fault)
            size = 0 if image.pixels is None else image.pixels.nbytes
            if size and (len(self.kept) + 1) * size <= KEPT_BYTES:
                self.kept.setdefault(row.image_key, image)
        read = [
            (row, image.pixels, (image.width or 0, image.height or 0))
            for row, image in zip(rows, images, strict=True)
            if image.pixels is not None
        ]
        side = self.decoder.spec.resolution
        empty = np.empty((0, side, side, 3), np.uint8)
        pixels = torch.from_numpy(np.stack([pixels for _, pixels, _ in read]) if read else empty)
        sizes = [size for *_, size in read]
        return ImageBatch(pixels, [row for row, *_ in read], len(rows) - len(read), sizes)
