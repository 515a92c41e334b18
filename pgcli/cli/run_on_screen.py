"""Runs, models and downloads as a person sees them: events of a run shown on stderr."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pgcli.checkpoints.find import DEMO, Checkpoint, find
from pgcli.cli.console import Screen
from pgcli.cli.options import CliCall
from pgcli.cli.progress import BYTE_UNIT, StageProgress
from pgcli.device.machine import find_gpu_problem
from pgcli.errors import UsageError
from pgcli.results.hooks import RowHook, check_hooks, make_hooks
from pgcli.results.image_locator import saved_record
from pgcli.run import events
from pgcli.run.events import Interrupted
from pgcli.run.progress import Summary
from pgcli.run.request import RunRequest, is_on_hub
from pgcli.run.run import run
from pgcli.stores.urls import url_scheme
from pgcli.text import byte_count

if TYPE_CHECKING:
    from pgcli.checkpoints.hub import DownloadPlan


def run_request(request: RunRequest) -> int:
    """Run what the command asks, and return its exit code. Raises the errors of the run."""
    screen = Screen(quiet=request.running.quiet)
    shown = RunOnScreen(screen, has_bars=request.output.output != "-" or not screen.shows_rows)
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
        limits=request.input.image_limits,
        reader=request.input.url_reader,
    )


class RunOnScreen:
    """Shows what a run says: messages, tables and a bar for each stage.

    Without `has_bars`, stages that count rows have none, as these appear on the same terminal.
    """

    def __init__(self, screen: Screen, *, has_bars: bool = True):
        self._screen, self._has_bars = screen, has_bars
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
                if self._has_bars or not unit:
                    progress = screen.progress(task, total, initial=initial, unit=unit)
                    self._progress = self._stages.enter_context(progress)
            case events.Progress():
                self._update(event)
            case events.StageEnd():
                self.close()

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


def find_model(call: CliCall, name: str, screen: Screen) -> Checkpoint:
    """The files of the model at the revision of the call, downloaded if necessary.

    Raises UsageError, ModelUnavailable and InvalidCheckpoint.
    """
    revision = revision_of(name, call.values, call.typed)
    return find(name, revision, progress=Downloads(screen))


def default_model() -> str:
    """The model of PGCLI_MODEL, or else demo."""
    return os.environ.get("PGCLI_MODEL") or DEMO


def revision_of(name: str | None, values: Mapping[str, Any], typed: Collection[str]) -> str | None:
    """The revision of a model on the Hub; None for a model on this machine.

    Raises UsageError if it was typed for a local model; set elsewhere, it is for other models.
    """
    revision: str | None = values.get("revision")
    if revision is None or is_on_hub(name):
        return revision
    if "revision" in typed:
        raise UsageError(
            f"--revision does not apply to {name or 'the built-in model'}",
            hint="omit --revision, or name a model on the Hub",
        )
    return None


def warn_unused_gpu(screen: Screen) -> None:
    """Show why the CPU is used on a machine with a GPU, unless the user has hidden the GPU."""
    if (problem := find_gpu_problem()) and not problem.is_intentional:
        screen.info(f"the CPU is used, not the GPU: {problem.reason}", hint=problem.remedy)


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
