"""Where a run's rows go, and what is there of them already."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_settings import settings_of
from pgcli.cli.ui.console import Screen
from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.pipeline import ResumeLog
from pgcli.records import Answer
from pgcli.remote.urls import without_credentials
from pgcli.rows import RowSchema
from pgcli.sinks import OutputFormat, Sink, open_resumable, open_stream, output_format
from pgcli.sinks.resumable import ResumableSink
from pgcli.state.destination import check_destination, check_resumable
from pgcli.state.run_state import RunState

if TYPE_CHECKING:
    from pgcli.sinks.column_types import ColumnTypes


@dataclass
class RunOutput:
    """The sink of a run. With a `state`, `rows` were there before it, some of them errors.

    `retries` says that rows with errors are made again.
    """

    sink: Sink | ResumableSink
    settings: dict[str, object]
    state: RunState | None = None
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    retries: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether a run before this one began it."""
        return self.state is not None and self.state.resumes

    @property
    def ledger(self) -> ResumeLog | None:
        """What is there already, as the run asks it."""
        return None if self.state is None else cast(ResumableSink, self.sink)

    def settle(self, learned: dict[str, object], told: dict[str, object]) -> None:
        """Add what only the loaded model tells. Raises OutputExists where that was another."""
        self.settings |= learned
        if self.state is not None:
            self.state.check_settings(dict(self.settings), told)
        self.settings |= told


@contextmanager
def opened(
    plan: Plan, screen: Screen, above: Callable[[Answer], str] | None = None
) -> Iterator[RunOutput]:
    """The output that the plan names, this run's alone within the block.

    On a terminal `above` is what stands before a row's text.

    What can be refused about it is refused here: raises UsageError, OutputInUse, OutputExists and
    OutputFailed.
    """
    chosen, settings = plan.options.output, settings_of(plan)
    written_as = check_output(plan)
    if written_as in ("stream", "text"):
        yield RunOutput(unrecorded(plan, screen, above), settings)
        return
    with RunState(
        Path(chosen.output),
        overwrite=chosen.overwrite,
        keep_old=written_as == "parquet",
        part=plan.shard.part if plan.shard else "",
    ) as state:
        screen.on_message = state.log.write
        state.log.write("pgcli " + " ".join(map(without_credentials, sys.argv[1:])))
        state.check_settings(dict(settings))
        with state.file_lists() as lists:
            plan.source.pin_files(lists)
        yield recorded(plan, state, settings, screen)


def check_output(plan: Plan) -> Literal["stream"] | OutputFormat:
    """How the output is written; what can be refused about it without making anything is."""
    chosen = plan.options.output
    written_as = output_format(chosen.output, chosen.format) if chosen.output != "-" else "stream"
    if plan.shard is not None and (written_as != "folder" or chosen.overwrite):
        raise UsageError(
            "--shard needs a folder of Parquet files to write to, and none of an earlier run",
            hint="name it with a slash at its end, -o rows/, and leave --overwrite out",
        )
    if plan.options.running.retry_errors and (
        written_as in ("stream", "text") or plan.options.input.limit is not None
    ):
        raise UsageError(
            "--retry-errors goes through all of an output that a run can go on with",
            hint="name the one whose errors are meant, -o rows.jsonl, and leave --limit out",
        )
    if written_as == "stream":
        if sys.stdout is None:
            raise OutputFailed("standard output is closed", hint="name a file: -o rows.jsonl")
        return "stream"
    path, overwrite = Path(chosen.output), chosen.overwrite
    if written_as == "text":
        check_destination(path, overwrite=overwrite)
    else:
        check_resumable(
            path,
            settings_of(plan),
            kind="folder" if written_as == "folder" else "file",
            overwrite=overwrite,
            part=plan.shard.part if plan.shard else "",
        )
    return written_as


def layout_of(plan: Plan) -> RowSchema:
    """The columns of the plan's rows."""
    return RowSchema(
        timing=not plan.options.output.no_timing,
        extras=plan.question.extra_columns,
        keep=plan.options.input.keep,
    )


def unrecorded(plan: Plan, screen: Screen, above: Callable[[Answer], str] | None) -> Sink:
    """An output that no run goes on with: a pipe, or text for people."""
    chosen = plan.options.output
    return open_stream(
        chosen.output,
        layout_of(plan),
        format=chosen.format,
        overwrite=chosen.overwrite,
        stdout=screen.stdout_above_bar() if chosen.output == "-" else None,
        header=above,
    )


def recorded(plan: Plan, state: RunState, settings: dict[str, object], screen: Screen) -> RunOutput:
    """The output with what is there of it; with --retry-errors all that is no error is known."""
    opening = partial(
        open_resumable,
        state,
        layout_of(plan),
        output_format(plan.options.output.output, plan.options.output.format),
        settings=settings,
        shard=plan.shard,
        types=partial(kinds_of, plan),
    )
    sink = opening()
    if sink.torn:
        screen.info(
            f"{state.output} was cut amid a row: {sink.torn:,} bytes are kept in "
            f"{state.folder / 'torn'}, and the row is made again"
        )
    if plan.options.running.retry_errors and sink.errors:
        screen.info(
            f"{sink.errors.total():,} rows with errors are asked again; {state.output} stays as it "
            "is till all are there"
        )
        sink = opening(retry=True)
        return RunOutput(sink, settings, state, sink.rows, sink.errors, retries=True)
    if sink.rows:
        screen.info(f"going on with {state.output}: {sink.rows:,} rows are there")
    return RunOutput(sink, settings, state, rows=sink.rows, errors=sink.errors)


def kinds_of(plan: Plan) -> ColumnTypes:
    """The types of the kept columns over the whole input; of standard input's all are text."""
    from pgcli.sinks import column_types

    names = plan.options.input.keep
    if plan.source.total is None:
        return column_types.text_types(names)
    return column_types.scan_types(names, lambda: (item.kept for item in plan.source))


def insist_on_as_many(plan: Plan, output: RunOutput, rows: int | None) -> None:
    """Raise OutputExists where the input, which makes so many rows, has become shorter than what
    was made of it; None where that is not known yet.
    """
    if plan.options.input.limit is None and rows is not None and output.rows > rows:
        raise OutputExists(
            f"{plan.options.output.output} has {output.rows:,} rows, and the input only makes "
            f"{rows:,}",
            hint="name the whole input; another -o begins anew, --overwrite replaces it",
        )


def already_complete(plan: Plan, output: RunOutput, screen: Screen) -> int:
    """Say that all rows are there; the exit code is what the run that made them had.

    It may have been killed before it could give them their place. Raises OutputExists where they
    are not those of the input. A shard that has no rows begins nothing.
    """
    if not output.rows:
        screen.info("nothing is to do: no row of the input is this shard's")
        return 0
    assert output.ledger is not None
    place = 0
    with output.sink:
        for item in plan.items():
            for prompt in item.prompts:
                output.ledger.is_missing(place, item, prompt)
                place += 1
    errors = output.errors.total()
    chosen = plan.options.output
    if chosen.draw is not None:
        screen.info("nothing is drawn of rows that are there", hint="pgcli view --draw DIR does it")
    if chosen.sidecar is not None:
        screen.info(
            "no text is written of rows that are there", hint="pgcli export --to txt does it"
        )
    with_errors = f", {errors:,} with errors (--retry-errors asks them again)" if errors else ""
    screen.info(f"nothing is left to do: all {output.rows:,} rows are there{with_errors}")
    return 3 if errors else 0
