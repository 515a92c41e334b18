"""Time limits for tests that also hold on a busy machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter, process_time

REFERENCE_SECONDS = 0.05  # the loop's time on an idle core of an Intel Xeon from 2023
PATIENT_SECONDS = 60.0


def loop_seconds(clock: Callable[[], float] = process_time) -> float:
    """The time of a million additions, the unit of time in tests."""
    began = clock()
    total = 0
    for number in range(1_000_000):
        total += number
    return clock() - began


@contextmanager
def processor_time_below(loops: float) -> Iterator[None]:
    """Fail if the block computes for longer than so many loops of a million additions; time in
    which other processes run does not count.
    """
    began = process_time()
    yield
    assert process_time() - began < loops * loop_seconds()


@contextmanager
def ends_soon() -> Iterator[None]:
    """Fail if the block takes over a minute, as it does without the tested feature."""
    began = monotonic()
    yield
    assert monotonic() - began < PATIENT_SECONDS


def scaled(seconds: float) -> float:
    """`seconds` times the slowness of this machine relative to the reference, at least 1.

    For slow tests of speed: the machine may become busy after this.
    """
    return seconds * max(1.0, loop_seconds(perf_counter) / REFERENCE_SECONDS)
