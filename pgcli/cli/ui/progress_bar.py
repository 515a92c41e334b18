"""A progress bar on the last line of a terminal, and output printed above it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from io import RawIOBase
from typing import Any

from rich.console import Console, RenderableType
from rich.control import Control
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.segment import ControlType
from rich.table import Column
from rich.text import Text

from pgcli.cli.ui.progress import ProgressDisplay, StageProgress
from pgcli.printable import printable

REDRAW_SECONDS = 0.1
NARROW = 60  # columns; a narrower terminal shows neither the task nor the time left


class OutputAboveBar(RawIOBase):
    """Standard output on the terminal that has the bar: its lines are printed above the bar.

    Lines are buffered until the bar is redrawn, so that many of them cost one drawing.
    """

    def __init__(self, console: Console):
        self._console = console
        self._buffer: list[bytes] = []
        self._lock = threading.Lock()

    def isatty(self) -> bool:
        return True

    def write(self, line: Any) -> int:
        with self._lock:
            self._buffer.append(bytes(line))
        return len(line)

    def print_above(self) -> None:
        """Print the buffered lines. The sink that wrote them has made them printable."""
        with self._lock:
            buffered, self._buffer = b"".join(self._buffer), []
        if buffered:
            text = Text(buffered.decode(errors="replace"))
            self._console.print(text, soft_wrap=True, end="")


class ProgressBar(ProgressDisplay):
    """A bar with counts, rate and time left, redrawn at an even pace by a thread of its own.

    The task itself only sets numbers, so that a bar costs it next to nothing.
    """

    def __init__(self, console: Console, output: OutputAboveBar | None = None):
        self._console, self._output = console, output
        self._ended = threading.Event()

    def start(self, progress: StageProgress) -> None:
        is_narrow = self._console.width < NARROW
        self._progress = progress
        self._drawing = BarWithDetails(
            progress,
            *([] if is_narrow else [TextColumn("{task.description}", style="bold", markup=False)]),
            BarColumn(bar_width=None),
            CountsColumn(progress, is_narrow=is_narrow),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            expand=True,
        )
        self._bar = self._drawing.add_task(
            printable(progress.task), total=progress.total, completed=progress.done
        )
        self._drawing.start()
        self._thread = threading.Thread(target=self._keep_drawing, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._draw()
        self._drawing.stop()

    def _keep_drawing(self) -> None:
        while not self._ended.wait(REDRAW_SECONDS):
            self._draw()

    def _draw(self) -> None:
        if self._output is not None:
            self._output.print_above()
        self._drawing.update(self._bar, completed=self._progress.done, refresh=True)
        # without it, the `^C` that the terminal echoes would wrap the line, and the bar would stay
        self._console.control(Control(ControlType.CARRIAGE_RETURN))


class BarWithDetails(RichProgress):
    """A bar, with the details of the task on a line below it."""

    def __init__(self, progress: StageProgress, *columns: ProgressColumn, **options: Any):
        self._progress = progress
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if details := self._progress.details:
            yield Text(printable(details), no_wrap=True, overflow="ellipsis")


class CountsColumn(ProgressColumn):
    """What is done, the rate, the errors and the time left, as far as the line has room."""

    def __init__(self, progress: StageProgress, *, is_narrow: bool):
        super().__init__(Column(no_wrap=True))
        self._progress, self._is_narrow = progress, is_narrow

    def render(self, task: Task) -> Text:
        progress = self._progress
        text = Text(progress.amount())
        for part, style in ((progress.speed(), ""), (progress.error_count(), "red")):
            text.append(f"  {part}" if part else "", style=style)
        if progress.seconds_left is not None and not self._is_narrow:
            left = timedelta(seconds=round(progress.seconds_left))
            text.append(f"  {str(left).removeprefix('0:')} left")
        return text
