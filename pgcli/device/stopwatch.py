"""Measure time on a device without waiting for it."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import torch

#: A point in time on a device's clock.
TimeMark = float | torch.cuda.Event


class Stopwatch:
    """Milliseconds between marks: device time on CUDA, wall time elsewhere.

    On CUDA a mark is an event in the stream, and setting one does not wait. Reading the time
    between two marks waits for the second.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> TimeMark:
        if not self._cuda:
            if self._device.type == "mps":
                torch.mps.synchronize()
            return perf_counter()
        # a wait for a blocking event sleeps, which leaves the core to decoding processes
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, first: TimeMark, second: TimeMark) -> float:
        if isinstance(first, float) or isinstance(second, float):
            assert isinstance(first, float)
            assert isinstance(second, float)
            return (second - first) * 1000
        second.synchronize()
        return float(first.elapsed_time(second))


class TimedPass(NamedTuple):
    """A forward pass over `rows` rows, between two marks."""

    watch: Stopwatch
    start: TimeMark
    end: TimeMark
    rows: int

    def ms_of_row(self) -> float:
        """Each row's share of the time in milliseconds; waits for the device."""
        return self.watch.between(self.start, self.end) / self.rows
