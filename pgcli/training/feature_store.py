"""The vision tower's outputs of images, computed once where the tower stays as it is.

B rows · P patches · D width
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from pgcli.stores.writing import wrap_write_errors
from pgcli.training.image_batches import ImageBatch
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import TrainingRows
from pgcli.training.training_row import TrainingRow

IN_MEMORY = 2**30  # bytes of features; more are in a temporary file
PARTS = "features-{}.part"  # the files of several processes, by their ranks


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

    Of several processes each computes a part, in a file of its own, and all read the files of all.
    The files are in `folder`; they have no names once they are read, and end with the processes.
    """

    def __init__(self, folder: Path, processes: Processes = ALONE):
        self.folder, self.processes = folder, processes
        self._files: list[IO[bytes]] = [self._new_file()]
        self._keys: list[str] = []  # of this process's images, in their order in its file
        #: The number of an image is that in its file, times the files, plus the number of the file.
        self._numbers: dict[str, int] = {}
        self._shape: torch.Size = torch.Size()
        self._dtype = torch.float32

    def __len__(self) -> int:
        """The number of images of all processes."""
        return len(self._numbers)

    def fill(self, batches: Iterable[ImageBatch], encode: Callable[[ImageBatch], Tensor]) -> None:
        """Add the features of the images of the batches, this process's part of all."""
        (file,) = self._files
        for batch in batches:
            feature_BPD = encode(batch).cpu().contiguous()
            self._shape, self._dtype = feature_BPD.shape[1:], feature_BPD.dtype
            with wrap_write_errors(self.folder):
                file.write(feature_BPD.view(torch.uint8).numpy().tobytes())
            self._keys += [row.image_key for row in batch.rows]

    def share(self) -> None:
        """Open the files of all processes, which all have filled theirs."""
        if self.processes.store is not None:
            with wrap_write_errors(self.folder):
                self._files.pop().close()
        found = self.processes.gather((self._keys, self._shape, self._dtype))
        for number, (keys, shape, dtype) in enumerate(found):
            if keys:
                self._shape, self._dtype = shape, dtype
            for index, key in enumerate(keys):
                self._numbers[key] = index * len(found) + number
        if self.processes.store is not None:
            ranks = range(self.processes.count)
            self._files = [self._part(rank).open("rb") for rank in ranks]
            self.processes.largest(0)  # all have opened them
            self._part(self.processes.rank).unlink()

    def batch(self, rows: Sequence[TrainingRow]) -> FeatureBatch:
        """The rows with their features, without those whose image could not be read."""
        known = [row for row in rows if row.image_key in self._numbers]
        if not known:
            empty = torch.empty(0, *self._shape, dtype=self._dtype)
            return FeatureBatch(empty, known, len(rows))
        data = bytearray().join(self._read(self._numbers[row.image_key]) for row in known)
        feature_BPD = torch.frombuffer(data, dtype=self._dtype).view(len(known), *self._shape)
        return FeatureBatch(feature_BPD, known, len(rows) - len(known))

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _read(self, number: int) -> bytes:
        index, file_number = divmod(number, len(self._files))
        file, size = self._files[file_number], self._shape.numel() * self._dtype.itemsize
        file.seek(index * size)
        return file.read(size)

    def _new_file(self) -> IO[bytes]:
        """The file of this process's part; those of a run that was killed are removed."""
        others = {self._part(rank) for rank in range(self.processes.count)}
        own = self._part(self.processes.rank)
        with wrap_write_errors(self.folder):
            if self.processes.is_first:
                for file in {*self.folder.glob(PARTS.format("*"))} - others:
                    file.unlink()
            if self.processes.store is not None:
                return own.open("wb")
            own.unlink(missing_ok=True)
        return tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(self.folder))

    def _part(self, rank: int) -> Path:
        return self.folder / PARTS.format(rank)


def distinct_images(rows: Sequence[TrainingRow]) -> Sequence[TrainingRow]:
    """The first row of each image."""
    if isinstance(rows, TrainingRows):
        _, first = np.unique(np.array(rows.image_keys), return_index=True)
        return rows.select(np.sort(first).tolist())
    found: dict[str, TrainingRow] = {}
    for row in rows:
        found.setdefault(row.image_key, row)
    return [*found.values()]
