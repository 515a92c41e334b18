"""The vision tower's outputs of images, computed once where the tower stays as it is.

B rows · P patches · D width
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pgcli.training.image_batches import ImageBatch
from pgcli.training.rows import TrainingRow, TrainingRows

IN_MEMORY = 2**30  # bytes of features; more are in a temporary file


@dataclass(frozen=True)
class FeatureBatch:
    """The features of images (B, P, D), and their rows; `lost` counts rows without."""

    feature_BPD: Tensor
    rows: Sequence[TrainingRow]
    lost: int = 0

    def part(self, start: int, stop: int) -> FeatureBatch:
        """The rows from `start` to before `stop`."""
        return FeatureBatch(self.feature_BPD[start:stop], self.rows[start:stop])

    def blank(self, row: TrainingRow) -> FeatureBatch:
        """The row with features of zeros."""
        return FeatureBatch(self.feature_BPD.new_zeros(1, *self.feature_BPD.shape[1:]), [row])


class FeatureStore:
    """The features of images by the rows' `image_key`, in memory or else in a temporary file.

    The file is in `folder`; it has no name and ends with the process.
    """

    def __init__(self, folder: Path, *, in_memory: int = IN_MEMORY):
        self._file: tempfile.SpooledTemporaryFile[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed with the store
            max_size=in_memory, dir=str(folder)
        )
        self._numbers: dict[str, int] = {}
        self._shape: torch.Size = torch.Size()
        self._dtype, self._size = torch.float32, 0

    def fill(self, batches: Iterable[ImageBatch], encode: Callable[[ImageBatch], Tensor]) -> None:
        """Add the features of the images of the batches."""
        for batch in batches:
            feature_BPD = encode(batch).cpu().contiguous()
            self._shape, self._dtype = feature_BPD.shape[1:], feature_BPD.dtype
            self._size = feature_BPD[0].nbytes
            self._file.write(feature_BPD.view(torch.uint8).numpy().tobytes())
            for row in batch.rows:
                self._numbers[row.image_key] = len(self._numbers)

    def batch(self, rows: Sequence[TrainingRow]) -> FeatureBatch:
        """The rows with their features, without those whose image could not be read."""
        known = [row for row in rows if row.image_key in self._numbers]
        if not known:
            return FeatureBatch(torch.empty(0, *self._shape), known, len(rows))
        data = bytearray().join(self._read(self._numbers[row.image_key]) for row in known)
        feature_BPD = torch.frombuffer(data, dtype=self._dtype).view(len(known), *self._shape)
        return FeatureBatch(feature_BPD, known, len(rows) - len(known))

    def close(self) -> None:
        self._file.close()

    def _read(self, number: int) -> bytes:
        self._file.seek(number * self._size)
        return self._file.read(self._size)


def distinct_images(rows: Sequence[TrainingRow]) -> Sequence[TrainingRow]:
    """The first row of each image."""
    if isinstance(rows, TrainingRows):
        _, first = np.unique(np.array(rows.image_keys), return_index=True)
        return rows.select(np.sort(first).tolist())
    found: dict[str, TrainingRow] = {}
    for row in rows:
        found.setdefault(row.image_key, row)
    return [*found.values()]
