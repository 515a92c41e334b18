"""What the vision tower has of images, computed once where the tower stays as it is.

B rows · P patches · D width
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from pgcli.stores.writing import wrap_write_errors
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import TrainingRow

FILES = "features-{}.part"  # by the ranks of processes


@dataclass(frozen=True)
class FeatureBatch:
    """The features of images (B, ...), and their rows; `lost` counts rows without."""

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
    """The features of images by the rows' `image_key`, in files of the folder.

    Each process computes a part, in a file of its own, and all read the files of all. The files
    have no names once they are read, and end with the processes.
    """

    def __init__(self, folder: Path, processes: Processes = ALONE):
        self.folder, self.processes = folder, processes
        self._keys: list[str] = []  # of this process's images, in their order in its file
        self._places: dict[str, tuple[int, int]] = {}  # the file of an image, and its number there
        self._shape, self._dtype = torch.Size(), torch.float32
        own = self._file(processes.rank)
        known = {self._file(rank) for rank in range(processes.count)}
        with wrap_write_errors(folder):
            if processes.is_first:  # a run that was killed may have left files
                for file in {*folder.glob(FILES.format("*"))} - known:
                    file.unlink()
            self._own: IO[bytes] = own.open("wb")
        self._files: list[IO[bytes]] = []

    def __len__(self) -> int:
        """The number of images of all processes."""
        return len(self._places)

    def add(self, feature_BPD: Tensor, rows: Sequence[TrainingRow]) -> None:
        """Append the features of this process's images."""
        feature_BPD = feature_BPD.contiguous()
        self._shape, self._dtype = feature_BPD.shape[1:], feature_BPD.dtype
        with wrap_write_errors(self.folder):
            self._own.write(feature_BPD.view(torch.uint8).numpy().tobytes())
        self._keys += [row.image_key for row in rows]

    def share(self) -> None:
        """Open the files of all processes, which all have filled theirs."""
        with wrap_write_errors(self.folder):
            self._own.close()
        for rank, (keys, shape, dtype) in enumerate(
            self.processes.gather((self._keys, self._shape, self._dtype))
        ):
            if keys:
                self._shape, self._dtype = shape, dtype
            self._places |= {key: (rank, number) for number, key in enumerate(keys)}
        self._files = [self._file(rank).open("rb") for rank in range(self.processes.count)]
        self.processes.largest(0)  # all have opened them
        self._file(self.processes.rank).unlink()

    def batch(self, rows: Sequence[TrainingRow]) -> FeatureBatch:
        """The rows with their features, without those whose image could not be read."""
        known = [row for row in rows if row.image_key in self._places]
        data = bytearray().join(self._read(*self._places[row.image_key]) for row in known)
        if not known:
            empty = torch.empty(0, *self._shape, dtype=self._dtype)
            return FeatureBatch(empty, known, len(rows))
        feature_BPD = torch.frombuffer(data, dtype=self._dtype).view(len(known), *self._shape)
        return FeatureBatch(feature_BPD, known, len(rows) - len(known))

    def _read(self, file: int, number: int) -> bytes:
        size = self._shape.numel() * self._dtype.itemsize
        return os.pread(self._files[file].fileno(), size, number * size)

    def _file(self, rank: int) -> Path:
        return self.folder / FILES.format(rank)
