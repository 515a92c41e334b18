"""Counts what a task has done and how fast, and shows the counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Self, TypeVar

from rich.filesize import decimal

from pgcli.wording import count, duration

LOG_SECONDS = 30.0
#: The unit of downloads; every other unit is a plural noun, or empty where nothing is counted.
BYTES = "bytes"

T = TypeVar("T")


class ProgressDisplay:
    """Shows nothing, as with `--quiet`; the base of the displays that show something."""

    def start(self, progress: StageProgress) -> None:
        pass

    def update(self, progress: StageProgress) -> None:
        pass

    def stop(self) -> None:
        pass


class ProgressLog(ProgressDisplay):
    """Writes a line every `LOG_SECONDS`, and none in a short task."""

    def __init__(self, write: Callable[[str], None]):
        self._write = write
        self._written = perf_counter()

    def update(self, progress: StageProgress) -> None:
        now = perf_counter()
        if now - self._written >= LOG_SECONDS:
            self._written = now
            self._write(self.line(progress))

    def line(self, progress: StageProgress) -> str:
        """What is written of the progress."""
        return f"{progress.task}: {progress.line()}"


class StageProgress:
    """The progress of one task, shown from the beginning to the end of a `with` block.

    `initial` of the `total` were done before the task began. Until more are done, `waits_for` says
    what the task is doing. `details` are shown below the bar, and after a line of a log.
    """

    def __init__(
        self,
        task: str,
        total: int | None = None,
        *,
        initial: int = 0,
        unit: str = "rows",
        display: ProgressDisplay | None = None,
    ):
        self.task, self.total, self.unit = task, total, unit
        self.initial = self.done = initial
        self.errors = 0
        self.waits_for = ""
        self.details = ""
        self._display = display or ProgressDisplay()
        self._seconds: float | None = None
        self._began = perf_counter()

    def advance(self, steps: int = 1) -> None:
        """Add to what is done; a negative number where a part starts over."""
        self.done += steps
        self._display.update(self)

    def update(self, done: int, *, errors: int, seconds: float) -> None:
        """Set what is done, and the time it took without the pauses of the task."""
        self.done, self.errors, self._seconds = done, errors, seconds
        self._display.update(self)

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and count each one."""
        for item in items:
            yield item
            self.advance()

    @property
    def elapsed(self) -> float:
        """Seconds since the task began."""
        return perf_counter() - self._began

    @property
    def seconds(self) -> float:
        return self.elapsed if self._seconds is None else self._seconds

    @property
    def rate(self) -> float | None:
        """What was done per second; None where nothing was."""
        added, seconds = self.done - self.initial, self.seconds
        return added / seconds if added > 0 and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        if self.total is None or self.rate is None:
            return None
        return max(0.0, (self.total - self.done) / self.rate)

    def amount(self) -> str:
        """`3 of 12`, `1.2 GB of 5.8 GB`, `3` where no total is known, `12.3 s` without counts."""
        if not self.unit:
            return duration(self.seconds)
        shown = decimal if self.unit == BYTES else "{:,}".format
        return shown(self.done) + (f" of {shown(self.total)}" if self.total is not None else "")

    def speed(self) -> str:
        """`8.3/s` or `1.2 MB/s`; before anything is done, what the task waits for."""
        if self.rate is None:
            return self.waits_for
        if self.unit == BYTES:
            return f"{decimal(int(self.rate))}/s"
        return f"{self.rate:,.{1 if self.rate < 100 else 0}f}/s"

    def error_count(self) -> str:
        """`1 error` or `2 errors`; empty where there are none."""
        return count(self.errors, "error") if self.errors else ""

    def line(self) -> str:
        """All of it in one line: `25 of 100 rows (25%), 12.5/s, 2 errors, 6.00 s left`."""
        share = f" ({self.done / self.total:.0%})" if self.total else ""
        unit = "" if self.unit == BYTES else f" {self.unit}"
        left = "" if self.seconds_left is None else f"{duration(self.seconds_left)} left"
        parts = (f"{self.amount()}{unit}{share}", self.speed(), self.error_count(), left)
        return "; ".join(filter(None, (", ".join(filter(None, parts)), self.details)))

    def __enter__(self) -> Self:
        self._display.start(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()
