"""Staged images for a GPU: equal features, few copies, and no early reads."""

import numpy as np
import pytest
import torch

from pgcli.engine.image_cache import SLAB_BYTES, Staging, neighbours
from pgcli.model import transfer

CPU = torch.device("cpu")


def image(value: int, side: int = 4) -> np.ndarray:
    return np.full((side, side, 3), value, np.uint8)


def staging_of(images: int, monkeypatch) -> Staging:
    """A staging area with slabs of so many images of 4 x 4."""
    monkeypatch.setattr("pgcli.engine.image_cache.SLAB_BYTES", images * image(0).nbytes)
    return Staging(CPU)


def test_a_batch_has_its_images_in_order_across_slabs(monkeypatch):
    staging = staging_of(3, monkeypatch)
    staged = [staging.add(image(value)) for value in range(8)]
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [7, 0, 4, 3, 5, 6], [2]):
        batch = staging.to_device([staged[index] for index in order])
        assert batch[:, 0, 0, 0].tolist() == order


@pytest.mark.parametrize(
    "problem",
    ["CUDA error: out of memory", "CUDA error: operation not supported", "no accelerator"],
)
def test_images_wait_in_other_memory_if_none_can_be_pinned(monkeypatch, problem):
    """As on WSL2 and in small containers; tokens are read back into such memory too."""
    real = torch.empty

    def empty(*arguments, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError(problem)
        return real(*arguments, **options)

    monkeypatch.setattr(torch, "empty", empty)
    staging = Staging(torch.device("cuda"))
    slab, row = staging.add(image(7))
    assert (slab[row] == 7).all()
    host = transfer.empty_on_host((2, 3), torch.int64, pinned=True)
    assert (host.shape, host.dtype, host.is_pinned()) == ((2, 3), torch.int64, False)
    monkeypatch.setattr(transfer, "reads_pinned", lambda device: True)
    values = torch.arange(6).view(2, 3).T
    assert torch.equal(transfer.to_device(values, CPU), values)


def test_adjacent_images_are_one_copy(monkeypatch):
    staging = staging_of(3, monkeypatch)
    staged = [staging.add(image(value)) for value in range(8)]
    runs = neighbours([*staged[1:7], staged[0], staged[7]])
    assert [rows for _, rows in runs] == [range(1, 3), range(3), range(1), range(1), range(1, 2)]


def test_an_image_of_another_size_starts_a_slab():
    staging = Staging(CPU)
    small, large = staging.add(image(1)), staging.add(image(2, side=6))
    assert small.slab is not large.slab
    assert len(small.slab) == SLAB_BYTES // image(0).nbytes
    assert staging.to_device([large])[0, 0, 0, 0] == 2


def test_an_image_larger_than_a_slab_has_its_own(monkeypatch):
    staging = staging_of(1, monkeypatch)
    staged = [staging.add(image(value, side=8)) for value in (1, 2)]
    assert [one.slab.shape for one in staged] == [(1, 8, 8, 3)] * 2
