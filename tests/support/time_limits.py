"""Time limits of tests, relative to the speed of the machine at this moment."""

from __future__ import annotations

from time import perf_counter

REFERENCE_SECONDS = 0.05  # of the loop below, on an idle core of an Intel Xeon of 2023


def scaled(seconds: float) -> float:
    """`seconds`, multiplied by how much slower than the reference this machine runs, at least 1."""
    started = perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return seconds * max(1.0, (perf_counter() - started) / REFERENCE_SECONDS)
