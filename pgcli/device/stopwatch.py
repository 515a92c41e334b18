"""Measure time on a device without waiting for it."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import torch

#: A point in time on a device's clock.
Mark = float | torch.cuda.Event


class Stopwatch:
    """Milliseconds between marks: device time on CUDA, wall time elsewhere.

    A mark on CUDA is an event in the stream and does not wait; reading the time between two waits
    until the second has passed.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> Mark:
        if not self._cuda:
            if self._device.type == "mps":
                torch.mps.synchronize()
            return perf_counter()
        # waiting for a blocking event sleeps, so that decoding processes can use the core
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, first: Mark, second: Mark) -> float:
        if isinstance(first, float) or isinstance(second, float):
            assert isinstance(first, float)
            assert isinstance(second, float)
            return (second - first) * 1000
        second.synchronize()
        return float(first.elapsed_time(second))


class TimedPass(NamedTuple):
    """A pass over `rows` rows, between two marks."""

    watch: Stopwatch
    start: Mark
    end: Mark
    rows: int

    def ms_of_row(self) -> float:
        """Each row's share of its time in milliseconds, for which the host waits."""
        return self.watch.between(self.start, self.end) / self.rows
