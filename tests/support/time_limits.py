"""Time limits of tests that hold on a busy machine, too."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter, process_time

REFERENCE_SECONDS = 0.05  # of the loop below, on an idle core of an Intel Xeon of 2023
PATIENT_SECONDS = 60.0


@contextmanager
def processor_time_below(seconds: float) -> Iterator[None]:
    """Fail if the block computes for longer; time in which other processes run does not count."""
    began = process_time()
    yield
    assert process_time() - began < seconds


@contextmanager
def ends_soon() -> Iterator[None]:
    """Fail if the block takes over a minute, as it does without what is tested."""
    began = monotonic()
    yield
    assert monotonic() - began < PATIENT_SECONDS


def scaled(seconds: float) -> float:
    """`seconds`, multiplied by how much slower than the reference this machine runs, at least 1.

    For slow tests of speed: the machine may become busy after this.
    """
    started = perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return seconds * max(1.0, (perf_counter() - started) / REFERENCE_SECONDS)
