"""The pipeline of a run, with its hooks and callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from signal import SIGPIPE

from pgcli.cli.job.callbacks import HookedResumeLog, RunCallbacks, ShowProgress, StopOnErrors
from pgcli.cli.job.completion import check_row_count
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.oom_notice import OomNotice
from pgcli.cli.job.output import RunOutput
from pgcli.cli.job.row_hooks import RowHooks
from pgcli.cli.job.run_images import RunImages
from pgcli.cli.job.run_summary import RunSummary
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.job.summary import interrupted_notice
from pgcli.cli.signals import Interrupted
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.progress import Progress
from pgcli.errors import NoInputError, OutputExists
from pgcli.pipeline import Ask, Tally, run
from pgcli.records import Answer, DecodedImage, error_answer


@dataclass(frozen=True)
class Job:
    """What a run needs once the model is loaded."""

    input: RunInput
    images: RunImages
    output: RunOutput
    engine: RunEngine
    hooks: RowHooks
    screen: Screen
    summary: RunSummary


def run_pipeline(job: Job) -> Tally:
    """Answer every item and save its rows, with progress shown and signals obeyed.

    A run that ends early prints how many rows are saved and raises what ended it.
    """
    plan, input, output, say = job.input.plan, job.input, job.output, job.screen.info
    total = None if input.rows is None else input.rows - input.kept_texts
    progress = job.screen.progress(plan.question.task, total, initial=output.rows)
    shutdown = GracefulShutdown(
        partial(say, "finishing the rows in progress; press again to quit at once"),
        lambda: say(progress.line()),
        pipes=plan.options.output.output == "-",
    )
    job.images.should_stop = shutdown.should_stop
    budget = plan.options.running.error_budget
    callbacks = RunCallbacks(
        shutdown,
        job.summary,
        ShowProgress(progress),
        OomNotice(job.engine, say, output.state),
        StopOnErrors(budget),
    )
    log = output.resume_log
    resume_log = None if log is None else HookedResumeLog(log, job.hooks)
    if output.state is not None:
        output.state.start(output.rows, lambda: shutdown.paused_seconds)
    try:
        with shutdown, progress, job.hooks, output.sink:
            tally = run(
                job.images.items,
                job.images.decode,
                show_first_images(plan.task.stage(job.engine, shutdown.should_stop), progress),
                partial(save_row, job),
                partial(error_answer, task=plan.question.task, model=job.engine.label),
                resume_log=resume_log,
                callback=callbacks,
            )
            shutdown.raise_if_requested()
            budget.check_share(tally)
            check_end_of_input(job, tally, resume_log)
        shutdown.raise_if_requested()  # the signal came after the last row
        return tally
    except (BrokenPipeError, NoInputError, OutputExists):  # the same command would end so again
        raise
    except BaseException as problem:
        report_interruption(job, progress, problem)
        raise


def show_first_images(ask: Ask, progress: Progress) -> Ask:
    """The same function; until the first row, the progress says whether images have arrived."""
    progress.waits_for = "reading the first images"

    def noted(stream: Iterable[tuple[int, DecodedImage]]) -> Iterator[tuple[int, DecodedImage]]:
        for found in stream:
            progress.waits_for = "answering the first images"
            yield found

    return lambda stream: ask(noted(stream))


def save_row(job: Job, answer: Answer) -> None:
    """Write a row's side outputs, then the row."""
    job.hooks.on_row(answer)
    job.output.sink.save(answer)


def check_end_of_input(job: Job, tally: Tally, resume_log: HookedResumeLog | None) -> None:
    """Raise OutputExists for an input shorter than its saved rows, NoInputError for an empty one.

    Only standard input is not counted before it ends.
    """
    if resume_log is not None:
        check_row_count(job.input, job.output, resume_log.rows_seen)
    if not tally.rows and not job.output.rows and not job.hooks.left_out:
        raise NoInputError(
            "nothing came on standard input",
            hint="pipe in a path or a JSON object on each line, or name a folder",
        )


def report_interruption(job: Job, progress: Progress, problem: BaseException) -> None:
    """Print how many rows are saved, unless the reader of a pipe is gone."""
    if isinstance(problem, Interrupted) and problem.signum == SIGPIPE:
        return
    output = job.input.options.output.output
    job.screen.info(interrupted_notice(output, progress.done, job.output.state))
