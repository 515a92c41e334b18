"""Shows a model's download: its size before, its progress, how long it took."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.progress import BYTE_UNIT, StageProgress
from pgcli.run.progress.shutdown import Interrupted
from pgcli.text import byte_count

if TYPE_CHECKING:
    from pgcli.checkpoints.hub import DownloadPlan


class Downloads:
    """Shows one download, if there is any: one progress display over all files."""

    def __init__(self, screen: Screen):
        # the client's warnings would break the bar; it reads the variable when it is imported
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        self._screen = screen
        self._plan: DownloadPlan | None = None
        self._progress = StageProgress("download")

    def message(self, text: str) -> None:
        self._screen.info(text)

    def start(self, plan: DownloadPlan) -> None:
        self._plan = plan
        cached = f", {byte_count(plan.cached)} is cached" if plan.cached else ""
        self._screen.info(
            f"downloading {plan.name}: {byte_count(plan.missing)}{cached}; "
            f"into {plan.folder}, which has {byte_count(plan.free)} free"
        )
        self._progress = self._screen.progress(
            "downloading", plan.total, initial=plan.cached, unit=BYTE_UNIT
        )
        self._progress.__enter__()

    def advance(self, byte_count: int) -> None:
        self._progress.advance(byte_count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._progress.__exit__(*problem)
        if self._plan is None:
            return
        done, seconds = self._progress.done, self._progress.seconds
        if isinstance(problem[1], Interrupted):
            self._screen.info(
                f"stopped after {byte_count(done)} of {byte_count(self._plan.total)}: "
                "the same command resumes with the remaining files"
            )
        elif not any(problem):
            self._screen.info(
                f"downloaded {byte_count(done - self._plan.cached)} in {seconds:.0f} s; "
                "checksums match"
            )
