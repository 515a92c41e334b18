"""When the requests of this process to servers have to fail, as a signal ends it."""

from __future__ import annotations

from math import inf
from time import monotonic

_end = inf


def end_requests(seconds: float) -> None:
    """Make the requests of this process fail after so many seconds; `inf` lifts the limit."""
    global _end
    _end = monotonic() + seconds


def requests_end() -> float:
    """The time by `monotonic` at which requests fail; `inf` as long as no signal came."""
    return _end
