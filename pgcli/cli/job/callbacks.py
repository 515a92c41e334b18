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

    def on_row(self, answer: Answer, tally: Tally) -> None:
        tally.paused_seconds = self._drain.paused_seconds
        self._progress.update(
            tally.rows_before + tally.rows, errors=tally.errors.total(), seconds=tally.seconds
        )
        self._shrinking.remark()
        self._tolerance.check(answer, tally)

    def should_stop(self) -> bool:
        return self._drain.asked()


class RowHook:
    """A resume log that passes the rows that are saved already to the hooks, to be skipped."""

    def __init__(self, resume_log: ResumeLog, hooks: RowHooks):
        self._resume_log, self._hooks = resume_log, hooks
        self.rows_seen = 0  # rows of the input so far
        self.is_answered = resume_log.is_answered
        self.stored_answer = resume_log.stored_answer
        self.journal = resume_log.journal

    @property
    def rows(self) -> int:
        """The number of rows saved."""
        return self._resume_log.rows

    def is_missing(self, row_index: int, item: Item, prompt: str) -> bool:
        """Whether this run is to save the row; if not, the hooks skip it."""
        is_missing = self._resume_log.is_missing(row_index, item, prompt)
        self.rows_seen += 1
        if not is_missing:
            self._hooks.skip(item)
        return is_missing
