"""The progress of a task: a bar with rate and time left on a terminal, a line at times in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Timer
from time import perf_counter
from typing import Any, Self, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from pgcli.text import byte_count, count, duration, printable

LOG_SECONDS = 30.0  # between two lines of a log; a short task writes none
#: The unit of downloads; every other unit is a plural noun, or empty where nothing is counted.
BYTE_UNIT = "bytes"
NARROW = 60  # columns; a narrower terminal shows neither the task nor the time left

T = TypeVar("T")


class StageProgress:
    """The progress of one task, shown from the beginning to the end of a `with` block.

    `initial` of the `total` were done before the task began. Until more are done, `waits_for` says
    what the task is doing. `details` are shown below the bar, and after a line of a log. It is
    drawn on the `console` after `delay` seconds, or passed to `log` every LOG_SECONDS; with
    `logs_ends` also when the task begins and ends.
    """

    def __init__(
        self,
        task: str,
        total: int | None = None,
        *,
        initial: int = 0,
        unit: str = "rows",
        console: Console | None = None,
        delay: float = 0.0,
        log: Callable[[StageProgress], None] | None = None,
        logs_ends: bool = False,
    ):
        self.task, self.total, self.unit = task, total, unit
        self.initial = self.done = initial
        self.errors = 0
        self.waits_for = self.details = ""
        self._began = self._logged = perf_counter()
        self._bar = None if console is None else Bar(self, console)
        self._timer = Timer(delay, self._bar.start) if self._bar and delay > 0 else None
        self._log, self._logs_ends = log, logs_ends

    def advance(self, steps: int = 1) -> None:
        """Advance the count; a negative number if a part starts over."""
        self.update(self.done + steps, errors=self.errors)

    def update(self, done: int, *, errors: int = 0) -> None:
        """Set the count."""
        self.done, self.errors = done, errors
        if self._log is not None and perf_counter() - self._logged >= LOG_SECONDS:
            self._logged = perf_counter()
            self._log(self)

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and count each one."""
        for item in items:
            yield item
            self.advance()

    @property
    def seconds(self) -> float:
        """Seconds since the task began."""
        return perf_counter() - self._began

    @property
    def rate(self) -> float | None:
        """Steps per second; None before the first."""
        added = self.done - self.initial
        return added / self.seconds if added > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left; None if unknown."""
        if self.total is None or self.rate is None:
            return None
        return max(0.0, (self.total - self.done) / self.rate)

    def amount(self) -> str:
        """`3 of 12`, `1.2 GB of 5.8 GB`, `3` where no total is known, `12.3 s` without counts."""
        if not self.unit:
            return duration(self.seconds)
        shown = byte_count if self.unit == BYTE_UNIT else "{:,}".format
        return shown(self.done) + (f" of {shown(self.total)}" if self.total is not None else "")

    def speed(self) -> str:
        """`8.3/s` or `1.2 MB/s`; before anything is done, what the task waits for."""
        if self.rate is None:
            return self.waits_for
        if self.unit == BYTE_UNIT:
            return f"{byte_count(int(self.rate))}/s"
        return f"{self.rate:,.{1 if self.rate < 100 else 0}f}/s"

    def error_count(self) -> str:
        """`1 error` or `2 errors`; empty without errors."""
        return count(self.errors, "error") if self.errors else ""

    def time_left(self) -> str:
        """`6.00 s left`; empty if unknown."""
        return "" if self.seconds_left is None else f"{duration(self.seconds_left)} left"

    def line(self) -> str:
        """All of it in one line: `25 of 100 rows (25%), 12.5/s, 2 errors, 6.00 s left`."""
        share = f" ({self.done / self.total:.0%})" if self.total else ""
        unit = "" if self.unit == BYTE_UNIT else f" {self.unit}"
        amount = f"{self.amount()}{unit}{share}"
        counts = filter(None, (amount, self.speed(), self.error_count(), self.time_left()))
        return "; ".join(filter(None, (", ".join(counts), self.details)))

    def values(self) -> dict[str, Any]:
        """All of it as values of an event."""
        return {
            **{"task": self.task, "unit": self.unit, "done": self.done, "total": self.total},
            **{"errors": self.errors, "details": self.details},
            "per_second": self.rate and round(self.rate, 3),
            "seconds": round(self.seconds, 3),
            "seconds_left": self.seconds_left and round(self.seconds_left, 3),
        }

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        elif self._bar is not None:
            self._bar.start()
        if self._log is not None and self._logs_ends:
            self._log(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._bar is not None:
            self._bar.stop()
        if self._log is not None and self._logs_ends:
            self._log(self)


class Bar(Progress):
    """Draws a progress on the last line of a terminal, where Rich redraws it at an even pace.

    The task itself only sets numbers, so that the bar costs it next to nothing.
    """

    def __init__(self, progress: StageProgress, console: Console):
        self._progress = progress
        self._is_narrow = is_narrow = console.width < NARROW
        super().__init__(
            *([] if is_narrow else [TextColumn("{task.description}", style="bold", markup=False)]),
            BarColumn(bar_width=max(4, min(40, console.width - NARROW))),
            TextColumn("{task.fields[counts]}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=False,
        )
        self.add_task(printable(progress.task), total=progress.total, counts="")

    def get_renderables(self) -> Iterable[RenderableType]:
        progress = self._progress
        time_left = "" if self._is_narrow else progress.time_left()
        parts = (progress.amount(), progress.speed(), progress.error_count(), time_left)
        for task in self.tasks:
            task.completed = progress.done
            task.fields["counts"] = "  ".join(filter(None, parts))
        yield self.make_tasks_table(self.tasks)
        if details := progress.details:
            yield Text(printable(details), no_wrap=True, overflow="ellipsis")
