"""Copies images to a GPU through pinned memory, with one copy for a batch.

C channels · R resolution
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pgcli.model.transfer import empty_on_host, reads_pinned

#: The size of a slab: a power of two, because PyTorch rounds pinned memory up to one.
SLAB_BYTES = 2**22


class StagedImage(NamedTuple):
    """The place of an image in a slab (images, R, R, C)."""

    slab: Tensor
    row: int


class Staging:
    """Copies images to slabs of pinned memory, from which a batch is copied asynchronously.

    A slab returns to PyTorch's cache of pinned memory with its last image, and is reused only after
    the copies that read it have finished.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._slab: Tensor | None = None
        self._used = 0

    def add(self, pixels_RRC: NDArray[np.uint8]) -> StagedImage:
        """Copy an image to the newest slab; all images of a slab have one shape.

        NumPy copies it ten times as fast as PyTorch, which would wake a thread on each core.
        """
        if self._slab is None or self._slab.shape[1:] != pixels_RRC.shape:
            self._slab, self._used = self._new_slab(pixels_RRC), 0
        slab, row = self._slab, self._used
        slab.numpy()[row] = pixels_RRC
        self._used += 1
        if self._used == len(slab):
            self._slab = None
        return StagedImage(slab, row)

    def to_device(self, images: list[StagedImage]) -> Tensor:
        """The images (B, R, R, C) on the device; the host waits for no copy."""
        first = images[0].slab
        out = first.new_empty(len(images), *first.shape[1:], device=self._device)
        start = 0
        for slab, rows in neighbours(images):
            part = slab[rows.start : rows.stop]
            out[start : start + len(rows)].copy_(part, non_blocking=True)
            start += len(rows)
        return out

    def _new_slab(self, like: NDArray[np.uint8]) -> Tensor:
        shape = max(1, SLAB_BYTES // like.nbytes), *like.shape
        return empty_on_host(shape, torch.uint8, pinned=reads_pinned(self._device))


def neighbours(images: Iterable[StagedImage]) -> list[tuple[Tensor, range]]:
    """The images as runs of consecutive rows of slabs, in order."""
    runs: list[tuple[Tensor, range]] = []
    for slab, row in images:
        if runs and runs[-1][0] is slab and runs[-1][1].stop == row:
            runs[-1] = slab, range(runs[-1][1].start, row + 1)
        else:
            runs.append((slab, range(row, row + 1)))
    return runs
