"""Gradients of a batch in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import nn

from pgcli.engine.oom import OutOfMemory, run_or_free
from pgcli.errors import NoUsableDevice

Result = TypeVar("Result")


@dataclass
class MicroBatches:
    """The largest number of rows that are computed together; None for all of a batch.

    With `is_fixed` false, the number is halved when memory runs out, and the update made again.
    """

    rows: int | None = None
    is_fixed: bool = False

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
                if self.is_fixed or rows == 1:
                    raise NoUsableDevice(
                        f"the device has no memory left to train on {rows} rows at once",
                        hint="--micro-batch with a smaller number, a smaller model or another "
                        "--device",
                    ) from None
            model.zero_grad(set_to_none=True)
            self.rows = rows // 2
