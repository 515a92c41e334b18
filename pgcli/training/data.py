"""Batches of rows with their images; the step determines the rows of a batch.

B rows · R resolution · C channels
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from pgcli.errors import TooManyErrors
from pgcli.images import ImageDecoder
from pgcli.images.pool import decode_ahead
from pgcli.records import DecodedImage, Item
from pgcli.stores import Reader
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import RowErrors, RowStore, TrainingRow, seed_of

#: Cache for the decoded images of small data sets: 3,500 images of 224 x 224.
KEPT_BYTES = 512 * 2**20


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
    caches decoded images by `image_key`, up to KEPT_BYTES.
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

    def row_batches(self, first: int, stop: int) -> Iterator[list[TrainingRow]]:
        """The rows of the steps, this process's share."""
        for numbers in map(self.processes.share, self.order.batches(first, stop)):
            yield [self.train[number] for number in numbers]

    def batches(self, first: int, stop: int) -> Generator[ImageBatch]:
        """The batches of the steps. Raises TooManyErrors."""
        size = min(self.order.batch_size, len(self.train)) // self.processes.count
        yield from self._load(self.row_batches(first, stop), total=(stop - first) * size)

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
            raise self.none_read(rows)

    def none_read(self, rows: Sequence[TrainingRow]) -> TooManyErrors:
        """The error for rows with only unreadable images."""
        name = rows[0].item.id
        reason = self.errors.reasons.get(rows[0].image_id)
        return TooManyErrors(
            f"no image can be read, such as {name}" + (f": {reason}" if reason else ""),
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
