"""What a person sees of a download: its size before, a bar or lines while it goes on, its end."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Self

from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from pgcli.checkpoints.hub.progress import DownloadPlan
from pgcli.cli.job.shutdown import Interrupted
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.progress import NARROW

LOG_SECONDS = 10.0


class Downloads:
    """Shows one download, if there is any: on a terminal one bar over all files, in a log lines."""

    def __init__(self, screen: Screen):
        # the client's own warnings would tear the bar; it reads this when it is imported
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        self._screen = screen
        self._plan: DownloadPlan | None = None
        self._arrived = 0
        self._began = self._said = perf_counter()
        self._drawn: RichProgress | None = None
        self._task = TaskID(0)

    def remark(self, message: str) -> None:
        self._screen.say(message)

    def start(self, plan: DownloadPlan) -> None:
        self._plan = plan
        self._began = self._said = perf_counter()
        kept = f", {decimal(plan.kept)} is there already" if plan.kept else ""
        self._screen.say(
            f"downloading {plan.name}: {decimal(plan.missing)}{kept}; "
            f"into {plan.folder}, which has {decimal(plan.free)} free"
        )
        if not self._screen.quiet and self._screen.redraws:
            self._drawn = bar(self._screen)
            self._task = self._drawn.add_task("", total=plan.total, completed=plan.kept)
            self._drawn.start()

    def count(self, arrived: int) -> None:
        self._arrived += arrived
        if self._drawn is not None:
            self._drawn.advance(self._task, arrived)
            return
        now = perf_counter()
        if self._plan is not None and now - self._said >= LOG_SECONDS:
            self._said = now
            self._screen.say(f"downloading {self._line(self._plan, now)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._drawn is not None:
            self._drawn.stop()
        if self._plan is not None and isinstance(problem[1], Interrupted):
            kept = decimal(self._plan.kept + self._arrived)
            self._screen.say(
                f"stopped: {kept} of {decimal(self._plan.total)} are kept; the same command goes "
                "on from there"
            )
        if self._plan is not None and not any(problem):
            seconds = perf_counter() - self._began
            self._screen.say(
                f"downloaded {decimal(self._arrived)} in {seconds:.0f} s; the checksums are right"
            )

    def _line(self, plan: DownloadPlan, now: float) -> str:
        from tqdm import tqdm

        return str(
            tqdm.format_meter(
                plan.kept + self._arrived,
                plan.total,
                now - self._began,
                initial=plan.kept,
                ncols=0,
                unit="B",
                unit_scale=True,
            )
        )


def bar(screen: Screen) -> RichProgress:
    """A bar of bytes with rate and time left, as far as there is room."""
    narrow = screen.console.width < NARROW
    return RichProgress(
        *([] if narrow else [TextColumn("downloading", style="bold")]),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        *([] if narrow else [TimeRemainingColumn(compact=True)]),
        console=screen.console,
        transient=True,
        redirect_stdout=False,
        expand=True,
    )
