"""The progress of a run: its messages, counts and interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import SIGPIPE
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.errors import NoInputError, OutputChanged, OutputExists, OutputFailed
from pgcli.records import Answer
from pgcli.run.progress import events
from pgcli.run.progress.shutdown import GracefulShutdown, Interrupted
from pgcli.run.progress.summary import Summary, interrupted_notice
from pgcli.run.progress.tally import Error, Tally

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest
    from pgcli.run.state.folder import State

UPDATE_SECONDS = 0.2  # between two updates of the display


class RunProgress:
    """The messages and counts of a run in progress.

    A run with a resumable output has a `state`; its `owner.json` gets the counts.
    """

    state: State | None = None

    def __init__(self, request: RunRequest, on_event: events.OnEvent):
        self.request, self.show = request, on_event
        self.began = perf_counter()
        self.summary = Summary(request)
        self.tally: Tally = self.summary.tally
        self.limits: Callable[[], str] = str  # describes reduced batches of the loaded model
        self._budget = request.running.error_budget
        self._shutdown: GracefulShutdown | None = None
        self._shown_at = self._answering_began = 0.0

    def say(self, text: str, hint: str = "") -> None:
        """Show a message."""
        self.show(events.Message(text, hint))

    @contextmanager
    def stage(
        self, task: str, total: int | None = None, initial: int = 0, unit: str = ""
    ) -> Iterator[None]:
        """Show a stage during the block."""
        self.show(events.Stage(task, total, initial, unit))
        try:
            yield
        finally:
            self.show(events.StageEnd())

    @contextmanager
    def counting(self) -> Iterator[Callable[[int], None]]:
        """Show that the input is counted; yield what adds to the number."""
        counted = 0

        def add(number: int) -> None:
            nonlocal counted
            counted += number
            if self._is_due():
                self.show(events.Progress(counted))

        with self.stage("counting", unit=self.summary.unit):
            yield add

    @contextmanager
    def answering(self, *, loads: str = "") -> Iterator[None]:
        """Show progress and handle signals while rows are computed.

        If other processes load the model `loads` first, they do so until `begin_rows` is called.
        Raises Interrupted after a signal, once the rows in progress are saved.
        """
        self._shutdown = GracefulShutdown(
            lambda: self.say("finishing the rows in progress; press again to quit at once"),
            pipes=self.request.output.output == "-",
        )
        if self.state is not None:
            self.note_counts()
            self.state.owner.write()  # `pgcli status` knows the total from the beginning
        if loads:
            self._answering_began = perf_counter()
            self.show(events.Stage(f"loading {loads}"))
        else:
            self.begin_rows()
        try:
            with self._shutdown:
                yield
                self.show_rows()
                self._shutdown.raise_if_requested()
                self._budget.check_share(self.tally)
        finally:
            self.measure()
            self.show(events.StageEnd())

    def begin_rows(self) -> None:
        """Show the row count, and measure the rate from now on: the model is loaded."""
        self._answering_began = perf_counter()
        total, before = self.summary.input_rows, self.tally.rows_before
        self.show(events.Stage(self.request.question.task, total, before, "rows"))
        self.show(events.Progress(before, waits_for="reading the first images"))

    def should_stop(self) -> bool:
        """Whether a signal or a closed pipe ends the run."""
        return self._shutdown is not None and self._shutdown.should_stop()

    def update(self, row: Answer) -> None:
        """Show progress regularly, after a row was saved.

        Raises TooManyErrors, and OutputInUse if another command took the output over.
        """
        if self._is_due():
            self.show_rows()
        if row.error is not None:
            self._budget.check(self.tally)

    def add(self, counts: Sequence[float], errors: Sequence[Error]) -> None:
        """Count saved rows of another process, and show progress like `update`."""
        self.tally.add(counts, errors)
        if self._is_due():
            self.show_rows()
        if errors:
            self._budget.check(self.tally)

    def measure(self) -> None:
        """Update the durations of the run and of answering in the summary."""
        now = perf_counter()
        self.summary.seconds = now - self.began
        self.tally.seconds = now - self._answering_began

    def show_rows(self) -> None:
        """Show the number of saved rows."""
        self._shown_at = perf_counter()
        self.measure()
        if self.state is not None:
            self.note_counts()
            self.state.owner.check()
        self.show_limits(self.limits())
        rows, errors = self.tally.rows_before + self.tally.rows, self.tally.errors.total()
        self.show(events.Progress(rows, errors, details=self.summary.waiting))

    def show_limits(self, limits: str) -> None:
        """Say once that memory ran out and batches are smaller."""
        if limits and not self.summary.limits:
            self.say(f"memory ran out: {limits}; no row is lost")
        self.summary.limits = limits or self.summary.limits

    def note_counts(self) -> None:
        """Update the counts for `owner.json`."""
        assert self.state is not None
        self.state.owner.note(**self.summary.values())

    def report_interruption(self, problem: BaseException) -> None:
        """Say how many rows are saved, if answering has begun and somebody reads messages."""
        is_pipe = isinstance(problem, Interrupted) and problem.signum == SIGPIPE
        is_refused = isinstance(
            problem, BrokenPipeError | NoInputError | OutputExists | OutputChanged
        )
        if self._shutdown is None or is_pipe or is_refused:
            return
        saved = self.tally.rows_before + self.tally.rows
        output, state = self.request.output.output, self.state
        with suppress(OutputFailed):
            self.say(interrupted_notice(output, saved, is_resumable=state is not None))

    def _is_due(self) -> bool:
        """Whether it is time to show progress."""
        is_due = perf_counter() - self._shown_at >= UPDATE_SECONDS
        if is_due:
            self._shown_at = perf_counter()
        return is_due
