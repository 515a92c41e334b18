"""The summary of a run as one JSON object, for `--summary-json` and the log of JSON lines."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from pgcli import __version__
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.output import RunOutput
from pgcli.cli.job.plan import Plan, check_not_an_input
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.signals import Interrupted
from pgcli.cli.ui.console import Screen
from pgcli.errors import OutputExists, OutputFailed, PgcliError
from pgcli.pipeline import NullCallback, Tally
from pgcli.printable import encodable
from pgcli.records import Answer
from pgcli.remote.urls import without_credentials
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.destination import check_destination


@dataclass
class RunSummary(NullCallback):
    """What is known of a run so far; it grows until the run ends, however that is."""

    began: float = field(default_factory=perf_counter)
    started: str = field(default_factory=lambda: utc_now())
    loading_seconds: float = 0.0
    input_rows: int | None = None
    rows_before: int = 0
    errors_before: Counter[str] = field(default_factory=Counter)
    engine: RunEngine | None = None
    tally: Tally = field(default_factory=Tally)
    exit_code: int = 0
    error: str | None = None
    hint: str | None = None

    def on_output(self, input: RunInput, output: RunOutput) -> None:
        """Called when it is known which rows are saved already."""
        self.input_rows, self.rows_before = input.rows, output.rows
        self.errors_before = output.errors

    def on_model(self, engine: RunEngine) -> None:
        """Called when the model is loaded."""
        self.engine, self.loading_seconds = engine, perf_counter() - self.began

    def on_row(self, answer: Answer, tally: Tally) -> None:
        self.tally = tally

    def add_problem(self, problem: BaseException) -> None:
        """Called with what ends the run early."""
        self.exit_code = 1
        if isinstance(problem, PgcliError):
            self.exit_code, self.error, self.hint = problem.exit_code, str(problem), problem.hint
        elif isinstance(problem, Interrupted):
            self.exit_code = 128 + problem.signum
            self.error = f"ended by {signal.Signals(problem.signum).name}"

    def values(self, plan: Plan) -> dict[str, object]:
        """All that is known. Times are in seconds."""
        output = plan.options.output.output
        return {
            "pgcli": __version__,
            "command": plan.question.task,
            "output": None if output == "-" else encodable(without_credentials(output)),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "started": self.started,
            "ended": utc_now(),
            "exit_code": self.exit_code,
            "error": self.error and without_credentials(self.error),
            "hint": self.hint and without_credentials(self.hint),
            **self.counts(),
            "seconds": self.seconds(),
            **self.model(),
        }

    def counts(self) -> dict[str, object]:
        """Rows of the input, those saved before and in this run, errors by code, rates."""
        tally, seconds = self.tally, self.tally.seconds or 1e-9
        return {
            "input_rows": self.input_rows,
            "rows_before": self.rows_before,
            "errors_before": dict(self.errors_before),
            "rows": tally.rows,
            "errors": dict(tally.errors),
            "images": tally.images,
            "tokens": tally.tokens,
            "rows_per_second": round(tally.rows / seconds, 3),
            "tokens_per_second": round(tally.tokens / seconds, 3),
        }

    def seconds(self) -> dict[str, float]:
        """The time of the command, of its parts, and of the model by stage."""
        tally = self.tally
        seconds = {
            "total": perf_counter() - self.began,
            "loading": self.loading_seconds,
            "answering": tally.seconds,
            "waited_for_images": tally.waited_seconds,
            "vision": tally.vision_ms / 1000,
            "prefill": tally.prefill_ms / 1000,
            "decode": tally.decode_ms / 1000,
        }
        return {name: round(value, 3) for name, value in seconds.items()}

    def model(self) -> dict[str, object]:
        """The model and how it ran; null where none was loaded."""
        names = ("label", "device", "dtype", "batch_size")
        values = {name: getattr(self.engine, name, None) for name in names}
        return {"model": values.pop("label"), **values}


@contextmanager
def summarized(plan: Plan, screen: Screen) -> Iterator[RunSummary]:
    """The summary of the run in the block: an event of the log, and the file of `--summary-json`.

    Both are written for a run that fails, too. Raises what `check_summary_file` raises.
    """
    file = plan.options.running.summary_json
    if file is not None:
        check_summary_file(plan, file)
    summary = RunSummary()
    try:
        yield summary
    except BaseException as problem:
        summary.add_problem(problem)
        with suppress(OutputFailed):  # the first problem is the one to report
            write_summary(summary, plan, screen)
        raise
    write_summary(summary, plan, screen)


def check_summary_file(plan: Plan, file: str) -> None:
    """Raise for a file that cannot be written. One that is not a summary is not replaced.

    Raises UsageError, OutputExists and OutputFailed.
    """
    path = Path(file)
    check_destination(path, overwrite=True, option="--summary-json")
    check_not_an_input(file, plan.sources, globs=True)
    if path.exists() and "exit_code" not in (read_json(path) or {}):
        raise OutputExists(
            f"{file} exists and is not the summary of a run", hint="name another --summary-json"
        )


def write_summary(summary: RunSummary, plan: Plan, screen: Screen) -> None:
    """Write the event and the file. Raises OutputFailed."""
    values = summary.values(plan)
    screen.event("summary", **values)
    file = plan.options.running.summary_json
    if file is not None:
        write_json(Path(file), values, durable=False)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
