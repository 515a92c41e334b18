"""The output of a run: its sink, and the rows that an earlier run saved."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pgcli.cli.job.destination import Destination
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.run_settings import run_settings
from pgcli.cli.ui.console import Screen
from pgcli.pipeline import ResumeLog
from pgcli.records import Answer
from pgcli.remote.urls import without_credentials
from pgcli.sinks import Sink, open_resumable, open_stream, output_format
from pgcli.sinks.resumable import ResumableSink
from pgcli.state.run_state import RunState

if TYPE_CHECKING:
    from pgcli.sinks.column_types import ColumnTypes


@dataclass
class RunOutput:
    """The sink of a run. `rows` and `errors` count the rows that an earlier run saved.

    `retries` says that the rows with errors are computed again.
    """

    sink: Sink | ResumableSink
    settings: dict[str, object]
    state: RunState | None = None
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    retries: bool = False

    @property
    def resumes(self) -> bool:
        """Whether an earlier run began the output."""
        return self.state is not None and self.state.resumes

    @property
    def resume_log(self) -> ResumeLog | None:
        """The rows of earlier runs, as the pipeline asks for them."""
        return None if self.state is None else cast(ResumableSink, self.sink)

    def add_model(self, settings: dict[str, object], metadata: dict[str, object]) -> None:
        """Add what is known once the model is loaded. Raises OutputExists for another model."""
        self.settings |= settings
        if self.state is not None:
            self.state.check_settings(dict(self.settings), metadata)
        self.settings |= metadata


@contextmanager
def open_output(
    input: RunInput,
    destination: Destination,
    screen: Screen,
    header: Callable[[Answer], str] | None = None,
) -> Iterator[RunOutput]:
    """The output, locked for this run within the block.

    On a terminal `header` returns what is printed above the text of a row. Raises OutputInUse,
    OutputExists and OutputFailed.
    """
    plan = input.plan
    settings, output = run_settings(plan), plan.options.output
    if not destination.is_resumable:
        sink = open_stream(
            output.output,
            plan.row_schema,
            format=output.format,
            overwrite=output.overwrite,
            stdout=screen.stdout_above_bar() if output.output == "-" else None,
            header=header,
        )
        yield RunOutput(sink, settings)
        return
    with RunState(
        Path(output.output),
        overwrite=output.overwrite,
        keep_old=destination.format == "parquet",
        part=plan.shard.part if plan.shard else "",
    ) as state:
        screen.on_message = state.log.write
        state.log.write("pgcli " + " ".join(map(without_credentials, sys.argv[1:])))
        state.check_settings(dict(settings))
        with state.file_lists() as lists:
            input.source.pin_files(lists)
        yield open_saved_rows(input, state, settings, screen)


def open_saved_rows(
    input: RunInput, state: RunState, settings: dict[str, object], screen: Screen
) -> RunOutput:
    """The output with the rows that are saved; with `--retry-errors`, without the error rows."""
    plan = input.plan
    opening = partial(
        open_resumable,
        state,
        plan.row_schema,
        output_format(plan.options.output.output, plan.options.output.format),
        settings=settings,
        shard=plan.shard,
        types=partial(kept_column_types, input),
    )
    sink = opening()
    print_resume(sink, state, screen, retries=plan.options.running.retry_errors)
    retries = plan.options.running.retry_errors and bool(sink.errors)
    if retries:
        sink.close()
        sink = opening(retry=True)
    return RunOutput(sink, settings, state, sink.rows, sink.errors, retries)


def print_resume(sink: ResumableSink, state: RunState, screen: Screen, *, retries: bool) -> None:
    """Print what an earlier run left, and what this run does with it."""
    if sink.torn:
        screen.info(
            f"{state.output} ended in the middle of a row: {sink.torn:,} bytes are kept in "
            f"{state.folder / 'torn'}, and the row is computed again"
        )
    if retries and sink.errors:
        screen.info(
            f"{sink.errors.total():,} rows with errors are asked again; {state.output} is "
            "replaced once all of them are answered"
        )
    elif sink.rows:
        screen.info(f"resuming {state.output}: {sink.rows:,} rows are saved")


def kept_column_types(input: RunInput) -> ColumnTypes:
    """The types of the `--keep` columns over the whole input; text where it is standard input."""
    from pgcli.sinks import column_types

    names = input.options.input.keep
    if input.source.total is None:
        return column_types.text_types(names)
    return column_types.scan_types(names, lambda: (item.kept for item in input.source))
