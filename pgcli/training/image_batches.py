"""Batches of decoded images; which rows are in a batch follows from the seed and the step alone.

B rows · R resolution · C channels
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from pgcli.errors import TooManyErrors
from pgcli.images import ImageDecoder
from pgcli.records import DecodedImage
from pgcli.training.row_store import RowStore
from pgcli.training.rows import TrainingRow
from pgcli.training.seeds import seed_of
from pgcli.workers import prefetch
from pgcli.workers.fetcher import Fetcher


@dataclass(frozen=True)
class ImageBatch:
    """Images and their rows; `lost` counts the rows whose images could not be read."""

    pixels_BRRC: Tensor
    rows: Sequence[TrainingRow]
    lost: int = 0

    def part(self, start: int, stop: int) -> ImageBatch:
        """The rows from `start` to before `stop`."""
        return ImageBatch(self.pixels_BRRC[start:stop], self.rows[start:stop])


@dataclass(frozen=True)
class RowOrder:
    """Which rows the batch of a step has: each epoch is a permutation of all rows of its own.

    Rows that do not fill the last batch of an epoch are left out of it.
    """

    rows: int
    batch_size: int
    seed: int

    @cached_property
    def steps_per_epoch(self) -> int:
        return max(1, self.rows // self.batch_size)

    def batches(self, first: int, stop: int) -> Iterator[list[int]]:
        """The row numbers of each step."""
        permutation, epoch = [], -1
        for step in range(first, stop):
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                permutation = self._permutation(epoch)
            start = step % self.steps_per_epoch * self.batch_size
            yield permutation[start : start + self.batch_size]

    def _permutation(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        return torch.randperm(self.rows, generator=generator).tolist()


@dataclass
class ImageLoader:
    """Decodes the images of batches ahead of the model.

    `faults` are the ids of images that could not be read, with the reasons.
    """

    store: RowStore
    decoder: ImageDecoder
    workers: int | None = None
    fetcher: Fetcher | None = None
    faults: dict[str, str] = field(default_factory=dict)

    def load(
        self,
        batches: Iterable[Sequence[TrainingRow]],
        total: int,
        *,
        may_be_empty: bool = False,
    ) -> Iterator[ImageBatch]:
        """The batches with their images; `total` is the number of rows.

        Without `may_be_empty`, raises TooManyErrors for a batch of which no image can be read.
        """
        ahead: list[Sequence[TrainingRow]] = []

        def rows() -> Iterator[TrainingRow]:
            for batch in batches:
                ahead.append(batch)
                yield from batch

        items = map(self.store.item, rows())
        decoded = prefetch(
            items, self.decoder, workers=self.workers, total=total, fetcher=self.fetcher
        )
        try:
            while first := next(decoded, None):
                batch = ahead.pop(0)
                found = self._batch(batch, [first, *islice(decoded, len(batch) - 1)])
                if not (found.rows or may_be_empty):
                    raise TooManyErrors(
                        f"no image of a batch could be read, such as {batch[0].item.id}: "
                        f"{self.faults[batch[0].item.id]}",
                        hint="correct the images, then run the same command again",
                    )
                yield found
        finally:
            decoded.close()  # type: ignore[attr-defined]

    def _batch(self, rows: Sequence[TrainingRow], images: Sequence[DecodedImage]) -> ImageBatch:
        read = []
        for row, image in zip(rows, images, strict=True):
            if image.pixels is None:
                self.faults[image.item.id] = image.fault.message if image.fault else ""
            else:
                read.append((row, image.pixels))
        side = self.decoder.spec.resolution
        empty = np.empty((0, side, side, 3), np.uint8)
        pixels = torch.from_numpy(np.stack([pixels for _, pixels in read]) if read else empty)
        return ImageBatch(pixels, [row for row, _ in read], len(rows) - len(read))
