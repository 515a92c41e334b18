"""Gradients of a batch in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import nn

from pgcli.engine.oom import OutOfMemory, run_or_free
from pgcli.errors import NoUsableDevice
from pgcli.stores.files import read_json
from pgcli.stores.writing import write_json

Result = TypeVar("Result")

SMALLER, ROWS = "micro_batch.json", "rows"  # a file of the state of a run, and its key


@dataclass
class MicroBatches:
    """The largest number of rows that are computed together; None for all of a batch.

    With `is_fixed` false, the number is halved when memory runs out, and the update made again. If
    the model is divided over processes, which are then within an update, the run ends in place of
    that: with `saved_in`, a folder, its next start takes the half. `forward_rows`, the number
    without gradients, is halved on its own, so that updates stay as they are.
    """

    rows: int | None = None
    is_fixed: bool = False
    saved_in: Path | None = None
    forward_rows: int | None = None

    def ranges(self, total: int, largest: int = 0) -> Iterator[tuple[int, int]]:
        """The first row of each part and that after its last.

        There are as many parts as `largest` rows would have, of which the last may be empty.
        """
        whole = max(total, largest)
        rows = self.rows or max(1, whole)
        for start in range(0, whole, rows):
            yield min(start, total), min(start + rows, total)

    def run(self, model: nn.Module, total: int, backward: Callable[[], Result]) -> Result:
        """The result of `backward`, which computes the gradients of `total` rows in `ranges`.

        Raises NoUsableDevice if memory does not suffice.
        """
        while True:
            try:
                return run_or_free(partial(backward))
            except OutOfMemory:
                rows = min(self.rows or total, total)
                self.rows = self._half(rows, "train on")
            if self.saved_in is not None:
                write_json(self.saved_in / SMALLER, {ROWS: self.rows})
                hint = f"the same command goes on from its last state, with {self.rows} at once"
                raise NoUsableDevice(no_memory("train on", rows), hint=hint)
            model.zero_grad(set_to_none=True)

    def forward(self, total: int, compute: Callable[[int, int], Result]) -> Iterator[Result]:
        """The results of `compute` for the first row of each part and that after its last.

        `compute` keeps no gradients. Raises NoUsableDevice if memory does not suffice.
        """
        start = 0
        while start < total:
            rows = min(self.forward_rows or self.rows or total, total - start)
            try:
                found = run_or_free(partial(compute, start, start + rows))
            except OutOfMemory:
                self.forward_rows = self._half(rows, "compute")
                continue
            yield found
            start += rows

    def _half(self, rows: int, purpose: str) -> int:
        """The half of `rows` that did not fit. Raises NoUsableDevice if there is none."""
        if self.is_fixed or rows == 1:
            raise NoUsableDevice(
                no_memory(purpose, rows),
                hint="--micro-batch with a smaller number, a smaller model or another --device",
            ) from None
        return rows // 2


def no_memory(purpose: str, rows: int) -> str:
    """The message that so many rows do not fit."""
    return f"the device has no memory left to {purpose} {rows} row{'s' * (rows != 1)} at once"


def saved_rows(folder: Path, planned: int) -> int:
    """The rows at once that are planned, or those that a run saved when memory ran out."""
    saved: int = (read_json(folder / SMALLER) or {}).get(ROWS, planned)
    return min(planned, saved)
