"""Runs of the command line: what they say on stderr, and their summary."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads
from pgcli.cli.ui.progress import StageProgress
from pgcli.results.hooks import check_hooks, make_hooks
from pgcli.results.images import saved_record
from pgcli.results.row_hook import RowHook
from pgcli.run.checks import image_limits
from pgcli.run.progress import events
from pgcli.run.progress.summary import Summary
from pgcli.run.request import RunRequest
from pgcli.run.run import run
from pgcli.stores.urls import url_scheme


def run_request(request: RunRequest) -> int:
    """Run what the command asks, and return its exit code. Raises the errors of the run."""
    screen = Screen(quiet=request.running.quiet)
    shown = RunOnScreen(screen)
    for line in request.ignored:
        screen.info(line)
    try:
        summary = run(request, shown, hooks_of(request, screen))
    except BaseException as problem:
        shown.close()
        failure = getattr(problem, "summary", None)
        if isinstance(failure, Summary):
            log_summary(failure, screen)
        raise
    show_summary(summary, screen)
    log_summary(summary, screen)
    return summary.exit_code or 0


def hooks_of(request: RunRequest, screen: Screen) -> list[RowHook]:
    """What the request has made of rows. Raises for what cannot be written.

    Nothing is created. Raises UsageError, OutputExists and OutputFailed.
    """
    output = request.output
    is_here = output.output != "-" and url_scheme(output.output) is None
    resumes = is_here and not output.overwrite and saved_record(Path(output.output)) is not None
    check_hooks(output, request.sources, resumes=resumes)
    return make_hooks(
        output,
        request.question,
        limits=image_limits(request),
        reader=request.input.url_reader,
    )


class RunOnScreen:
    """Shows what a run says: messages, tables and a bar for each stage."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._stages = ExitStack()
        self._progress: StageProgress | None = None

    def __call__(self, event: events.Event) -> None:
        screen = self._screen
        match event:
            case events.Message(text, hint):
                screen.info(text, hint=hint)
            case events.FactTable(facts):
                screen.table(facts)
            case events.Stage(task, total, initial, unit):
                self.close()
                progress = screen.progress(task, total, initial=initial, unit=unit)
                self._progress = self._stages.enter_context(progress)
            case events.Progress():
                self._update(event)
            case events.StageEnd():
                self.close()

    def output(self) -> BinaryIO | None:
        """Standard output for rows above the bar; None where it has no bar."""
        return self._screen.stdout_above_bar()

    def downloads(self) -> Downloads:
        """What shows the download of a model."""
        return Downloads(self._screen)

    def close(self) -> None:
        """End the stage that is shown."""
        self._stages.close()
        self._progress = None

    def _update(self, event: events.Progress) -> None:
        if self._progress is None:
            return
        self._progress.waits_for, self._progress.details = event.waits_for, event.details
        self._progress.update(event.done, errors=event.errors)


def show_summary(summary: Summary, screen: Screen) -> None:
    """Show in two lines what a run did, and the command to run next; `--verbose` shows all of it.

    For one image answered on the same terminal, it shows only the second line.
    """
    request = summary.request
    if summary.engine is None or request.running.dry_run:
        screen.table(summary.notes())
    elif request.running.verbose:
        screen.table([*summary.facts()])
    else:
        lines = [*summary.lines(), *(f"{name}: {text}" for name, text in summary.notes())]
        is_read = summary.input_rows == 1 and screen.shows_rows
        has_next = request.output.output != "-" or (screen.shows_rows and not is_read)
        for line in lines[is_read:-1]:
            screen.info(line)
        screen.info(lines[-1], hint=summary.next_command() if has_next else "")


def log_summary(summary: Summary, screen: Screen) -> None:
    """Write the event `summary` into a log of JSON lines."""
    if not summary.request.running.dry_run:
        screen.event("summary", **summary.values())
