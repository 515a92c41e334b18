"""Batches of decoded images; which rows are in a batch follows from the seed and the step alone.

B rows · R resolution · C channels
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from pgcli.images import ImageDecoder
from pgcli.images.pool import decode_ahead
from pgcli.records import DecodedImage
from pgcli.stores import Reader
from pgcli.training.image_errors import ImageErrors
from pgcli.training.row_store import RowStore
from pgcli.training.seeds import seed_of
from pgcli.training.training_row import TrainingRow


@dataclass(frozen=True)
class ImageBatch:
    """Images and their rows; `lost` counts the rows whose images could not be read."""

    pixels_BRRC: Tensor
    rows: Sequence[TrainingRow]
    lost: int = 0

    def part(self, start: int, stop: int) -> ImageBatch:
        """The rows from `start` to before `stop`."""
        return ImageBatch(self.pixels_BRRC[start:stop], self.rows[start:stop])

    def blank(self, row: TrainingRow) -> ImageBatch:
        """The row with a black image."""
        return ImageBatch(self.pixels_BRRC.new_zeros(1, *self.pixels_BRRC.shape[1:]), [row])


@dataclass(frozen=True)
class RowOrder:
    """Which rows the batch of a step has: each epoch is a permutation of all rows of its own.

    Rows that do not fill the last batch of an epoch are left out of it. With `lengths`, the rows of
    a batch are in descending order of length, so that those of a micro-batch need little padding.
    Which rows are in a batch does not depend on lengths.
    """

    rows: int
    batch_size: int
    seed: int
    lengths: Sequence[int] | None = None

    @cached_property
    def steps_per_epoch(self) -> int:
        return max(1, self.rows // self.batch_size)

    def batches(self, first: int, stop: int) -> Iterator[list[int]]:
        """The row numbers of each step."""
        permutation, epoch = torch.empty(0), -1
        for step in range(first, stop):
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                permutation = self._permutation(epoch)
            start = step % self.steps_per_epoch * self.batch_size
            batch = permutation[start : start + self.batch_size].tolist()
            if self.lengths is not None:
                batch.sort(key=self.lengths.__getitem__, reverse=True)
            yield batch

    def _permutation(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        return torch.randperm(self.rows, generator=generator)


@dataclass
class ImageLoader:
    """Decodes the images of batches ahead of the model.

    `make_reader` makes the reader of images at addresses; a pass through batches ends its own.
    """

    store: RowStore
    decoder: ImageDecoder
    errors: ImageErrors
    workers: int | None = None
    make_reader: Callable[[], Reader | None] = lambda: None

    def load(self, batches: Iterable[Sequence[TrainingRow]], total: int) -> Iterator[ImageBatch]:
        """The batches with the images that can be read, which may be none; `total` counts rows.

        Raises TooManyErrors.
        """
        ahead: list[Sequence[TrainingRow]] = []

        def rows() -> Iterator[TrainingRow]:
            for batch in batches:
                ahead.append(batch)
                yield from batch

        items = map(self.store.item, rows())
        decoded = decode_ahead(
            items, self.decoder, workers=self.workers, total=total, reader=self.make_reader()
        )
        try:
            while first := next(decoded, None):
                batch = ahead.pop(0)
                others = islice(decoded, len(batch) - 1)
                yield self._batch(batch, [first, *filter(None, others)])
        finally:
            decoded.close()

    def _batch(self, rows: Sequence[TrainingRow], images: Sequence[DecodedImage]) -> ImageBatch:
        for row, image in zip(rows, images, strict=True):
            self.errors.add(row.image_id, image)
        read = [
            (row, image.pixels)
            for row, image in zip(rows, images, strict=True)
            if image.pixels is not None
        ]
        side = self.decoder.spec.resolution
        empty = np.empty((0, side, side, 3), np.uint8)
        pixels = torch.from_numpy(np.stack([pixels for _, pixels in read]) if read else empty)
        return ImageBatch(pixels, [row for row, _ in read], len(rows) - len(read))
