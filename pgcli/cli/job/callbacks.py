"""Whoever looks on while a run goes on: shows it, remarks on it, and ends it when asked to."""

from __future__ import annotations

from pgcli.cli.job.oom_notice import OomNotice
from pgcli.cli.job.row_hooks import RowHooks
from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.ui.progress import Progress
from pgcli.pipeline import ErrorBudget, ResumeLog, Tally
from pgcli.records import Answer, Item


class Watching:
    """Shows each row as it is saved, and raises what ends the run. It is a run's `Watch`."""

    def __init__(
        self,
        progress: Progress,
        shrinking: OomNotice,
        tolerance: ErrorBudget,
        drain: GracefulShutdown,
    ):
        self._progress = progress
        self._shrinking = shrinking
        self._tolerance = tolerance
        self._drain = drain

    def row(self, answer: Answer, tally: Tally) -> None:
        tally.paused_seconds = self._drain.paused_seconds
        self._progress.update(
            tally.rows_before + tally.rows, errors=tally.errors.total(), seconds=tally.seconds
        )
        self._shrinking.remark()
        self._tolerance.check(answer, tally)

    def stopped(self) -> bool:
        return self._drain.asked()


class RowHook:
    """A ledger whose rows that are saved already are not drawn again."""

    def __init__(self, ledger: ResumeLog, beside: RowHooks):
        self._ledger, self._beside = ledger, beside
        self.places = 0  # of the input that went by
        self.is_known, self.row, self.wait = ledger.is_known, ledger.row, ledger.wait

    @property
    def rows(self) -> int:
        """How many rows are saved."""
        return self._ledger.rows

    def is_due(self, place: int, item: Item, prompt: str) -> bool:
        """Whether the row is to leave in this run; if not, it is not drawn either."""
        is_due = self._ledger.is_due(place, item, prompt)
        self.places += 1
        if not is_due:
            self._beside.skip(item)
        return is_due
