"""The features of images of several processes: each computes a part, and all read them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgcli.records import Item
from pgcli.training.data import ImageBatch
from pgcli.training.features import FeatureStore
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import TrainingRow

COUNT = 3
ROWS = [TrainingRow(Item(n, f"{n}", f"{n}.png"), "red", f"{n}.png") for n in range(8)]
LOST = {"2.png", "5.png"}


@dataclass
class Exchange:
    """What threads exchange in place of processes."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(COUNT, timeout=60))
    values: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Thread(Processes):
    """A thread in place of a process."""

    exchange: Exchange = field(default_factory=Exchange)

    def gather(self, value: Any) -> list[Any]:
        self.exchange.values[self.rank] = value
        self.exchange.barrier.wait()
        found = [self.exchange.values[rank] for rank in range(self.count)]
        self.exchange.barrier.wait()  # before the next values replace these
        return found

    def largest(self, value: int) -> int:
        return max(self.gather(value))


def encode(batch: ImageBatch) -> Tensor:
    """Features that are those of the image: (B, 2, 4)."""
    numbers = torch.tensor([row.item.index for row in batch.rows], dtype=torch.bfloat16)
    return numbers[:, None, None].expand(-1, 2, 4)


def batches(rows: list[TrainingRow], processes: Processes) -> list[ImageBatch]:
    """Batches of three rows, without those whose images are lost."""
    shares = processes.share([rows[start : start + 3] for start in range(0, len(rows), 3)])
    read = [[row for row in share if row.image_key not in LOST] for share in shares]
    return [ImageBatch(torch.empty(len(one), 1, 1, 3), one) for one in read]


def filled(folder: Path, processes: Processes, rows: list[TrainingRow] = ROWS) -> FeatureStore:
    store = FeatureStore(folder, processes)
    for batch in batches(rows, processes):
        store.add(encode(batch), batch.rows)
    store.share()
    return store


def threads(folder: Path, rows: list[TrainingRow] = ROWS) -> list[FeatureStore]:
    """The stores of threads in place of processes."""
    exchange = Exchange()
    connected: Any = object()
    with ThreadPoolExecutor(COUNT) as pool:
        processes = [Thread(rank, COUNT, connected, exchange=exchange) for rank in range(COUNT)]
        return [*pool.map(lambda one: filled(folder, one, rows), processes)]


def assert_complete(store: FeatureStore) -> None:
    order = [5, 7, 0, 3, 2, 6, 7, 1, 4]
    found = store.batch([ROWS[number] for number in order])
    kept = [number for number in order if f"{number}.png" not in LOST]
    assert [row.item.index for row in found.rows] == kept
    assert found.lost == len(order) - len(kept)
    assert found.feature_BPD.dtype == torch.bfloat16
    assert torch.equal(found.feature_BPD, encode(ImageBatch(torch.empty(0), found.rows)))


def test_store_of_one_process_has_all_features(tmp_path: Path) -> None:
    store = filled(tmp_path, ALONE)
    assert not [*tmp_path.iterdir()]
    assert_complete(store)


def test_each_process_reads_what_all_have_computed(tmp_path: Path) -> None:
    """Files that a killed run has left, of more processes too, are removed."""
    for rank in (1, 7):
        (tmp_path / f"features-{rank}.part").write_bytes(b"left behind" * 100)
    stores = threads(tmp_path)
    assert [len(store._keys) for store in stores] == [2, 2, 2]
    assert not [*tmp_path.iterdir()]
    for store in stores:
        assert_complete(store)


def test_process_without_images_has_blank_features_of_the_same_shape(tmp_path: Path) -> None:
    """There is one batch: the second process has none, and in an update it may have no row."""
    *_, store = threads(tmp_path, ROWS[:2])
    assert (len(store), len(store._keys)) == (2, 0)
    blank = store.batch([ROWS[5]]).blank(ROWS[0]).feature_BPD
    assert (blank.shape, blank.dtype) == ((1, 2, 4), torch.bfloat16)
