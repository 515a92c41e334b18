"""How a run goes on: a bar on a terminal, lines in a log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from io import RawIOBase
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.control import Control
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.segment import ControlType
from rich.table import Column
from rich.text import Text

from pgcli.pipeline import Tally
from pgcli.records import Answer

REDRAW_SECONDS = 0.1
LOG_SECONDS = 30.0
NARROW = 60  # columns of a terminal, below which only what counts has room


class Progress(Protocol):
    """Told of each row of a run, from the beginning to the end of a `with` block."""

    tally: Tally

    def count(self, answer: Answer, tally: Tally) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Nothing:
    """Shows nothing, and knows how far the run came."""

    def __init__(self, before: int = 0) -> None:
        self.tally = Tally(rows_before=before)

    def count(self, answer: Answer, tally: Tally) -> None:
        self.tally = tally

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Log(Nothing):
    """A line now and then, and none at all in a short run."""

    def __init__(self, say: Callable[[str], None], task: str, total: int | None, before: int = 0):
        super().__init__(before)
        self._say = say
        self._task = task
        self._total = total
        self._said = perf_counter()

    def count(self, answer: Answer, tally: Tally) -> None:
        super().count(answer, tally)
        now = perf_counter()
        if now - self._said < LOG_SECONDS:
            return
        from tqdm import tqdm

        self._said = now
        total: Any = self._total  # its stubs know no unknown total
        line = tqdm.format_meter(
            tally.rows_before + tally.rows,
            total,
            tally.seconds,
            ncols=0,
            unit=" rows",
            initial=tally.rows_before,
            postfix=errors(tally),
        )
        self._say(f"{self._task}: {line}")


class Rows(RawIOBase):
    """Standard output where it is the terminal that the bar is on: rows go above the bar.

    They are held until the bar is drawn again, so that a burst of them costs one drawing.
    """

    def __init__(self, console: Console):
        self._console = console
        self._held: list[bytes] = []
        self._lock = threading.Lock()

    def isatty(self) -> bool:
        return True

    def write(self, line: Any) -> int:
        with self._lock:
            self._held.append(bytes(line))
        return len(line)

    def release(self) -> None:
        """Print the rows held. The sink that wrote them left nothing in them that steers."""
        with self._lock:
            held, self._held = b"".join(self._held), []
        if held:
            text = Text(held.decode(errors="replace"))
            self._console.print(text, soft_wrap=True, end="")


class Bar:
    """A bar on the terminal's last line, drawn at an even pace by a thread of its own."""

    def __init__(
        self,
        console: Console,
        task: str,
        total: int | None,
        rows: Rows | None,
        before: int = 0,
    ):
        self.tally = Tally(rows_before=before)
        self._rows = rows
        self._drawn = RichProgress(
            *([TextColumn(task, style="bold")] if console.width >= NARROW else []),
            BarColumn(bar_width=None),
            Standing(console),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            expand=True,
        )
        self._task = self._drawn.add_task(task, total=total, tally=self.tally)
        self._ended = threading.Event()
        self._pace = threading.Thread(target=self._keep_drawing, daemon=True)

    def count(self, answer: Answer, tally: Tally) -> None:
        self.tally = tally

    def __enter__(self) -> Self:
        self._drawn.start()
        self._pace.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pace.join()
        self._draw()
        self._drawn.stop()

    def _keep_drawing(self) -> None:
        while not self._ended.wait(REDRAW_SECONDS):
            self._draw()

    def _draw(self) -> None:
        if self._rows is not None:
            self._rows.release()
        tally = self.tally
        done = tally.rows_before + tally.rows
        self._drawn.update(self._task, completed=done, tally=tally, refresh=True)
        # what the terminal echoes of a Ctrl-C would else wrap, and the bar be left standing
        self._drawn.console.control(Control(ControlType.CARRIAGE_RETURN))


class Standing(ProgressColumn):
    """Rows done, how fast, errors, and the time left, as far as there is room."""

    def __init__(self, console: Console):
        super().__init__(Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> Text:
        tally: Tally = task.fields["tally"]
        done = tally.rows_before + tally.rows
        standing = Text(f"{done:,}" + (f" of {task.total:,.0f}" if task.total is not None else ""))
        if tally.rows and tally.seconds:
            rate = tally.rows / tally.seconds
            standing.append(f"  {rate:.{1 if rate < 100 else 0}f}/s")
            if tally.errors:
                standing.append(f"  {errors(tally)}", style="red")
            if task.total is not None and self._console.width >= NARROW:
                left = timedelta(seconds=round((task.total - done) / rate))
                standing.append(f"  {str(left).removeprefix('0:')} left")
        return standing


def errors(tally: Tally) -> str | None:
    """How many error rows there are, in words, if any."""
    count = tally.errors.total()
    return f"{count:,} error{'s' * (count != 1)}" if count else None
