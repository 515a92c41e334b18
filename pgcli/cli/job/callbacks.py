"""Progress and stop conditions of a run, as callbacks of the pipeline."""

from __future__ import annotations

from pgcli.cli.job.row_hooks import RowHook
from pgcli.cli.ui.progress import Progress
from pgcli.pipeline import ErrorBudget, NullCallback, ResumeLog, RunCallback, Tally
from pgcli.records import Answer, Item


class RunCallbacks:
    """Several callbacks called as one, in their order. The first that raises ends the run."""

    def __init__(self, *callbacks: RunCallback):
        self._callbacks = callbacks

    def on_row(self, answer: Answer, tally: Tally) -> None:
        for callback in self._callbacks:
            callback.on_row(answer, tally)

    def should_stop(self) -> bool:
        return any(callback.should_stop() for callback in self._callbacks)


class ShowProgress(NullCallback):
    """Updates the progress display."""

    def __init__(self, progress: Progress):
        self._progress = progress

    def on_row(self, answer: Answer, tally: Tally) -> None:
        self._progress.update(
            tally.rows_before + tally.rows, errors=tally.errors.total(), seconds=tally.seconds
        )


class StopOnErrors(NullCallback):
    """Ends the run when the error budget is spent."""

    def __init__(self, budget: ErrorBudget):
        self._budget = budget

    def on_row(self, answer: Answer, tally: Tally) -> None:
        self._budget.check(answer, tally)


class HookedResumeLog:
    """A resume log that reports the rows of earlier runs to a row hook."""

    def __init__(self, log: ResumeLog, hook: RowHook):
        self._log, self._hook = log, hook
        self.rows_seen = 0  # rows of the input so far
        self.note_image = log.note_image
        self.is_answered = log.is_answered
        self.stored_answer = log.stored_answer
        self.journal = log.journal

    @property
    def rows(self) -> int:
        """The number of rows that are saved."""
        return self._log.rows

    def is_missing(self, row_index: int, item: Item, prompt: str) -> bool:
        """Whether this run has to save the row. If not, the hook skips it."""
        is_missing = self._log.is_missing(row_index, item, prompt)
        self.rows_seen += 1
        if not is_missing:
            self._hook.on_skipped_row(item, row_index)
        return is_missing
