"""The output of a run: its sink, and the rows that an earlier run saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pgcli.arrow_values import to_json
from pgcli.cli.job.destination import Destination
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_settings import input_metadata, resume_rules, run_settings
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.wording import count
from pgcli.errors import OutputExists
from pgcli.pipeline import ResumeLog
from pgcli.records import Answer
from pgcli.remote.urls import without_credentials
from pgcli.sinks import Sink, open_resumable, open_stream, output_format
from pgcli.sinks.resumable import ResumableSink
from pgcli.sources.kept_columns import ALL
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.open_run import open_run, replace_output
from pgcli.state.run_record import PROMPTS
from pgcli.state.run_state import RunState
from pgcli.state.shard import ROWS_PER_FILE, stored_chunk_rows
from pgcli.state.stored_run import open_stored_run

if TYPE_CHECKING:
    from pgcli.sinks.column_types import ColumnTypes

#: The setting of runs whose boxes have it; the rows of a file have the same columns.
CONFIDENCE = "confidence"


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
            input.row_schema,
            format=output.format,
            overwrite=output.overwrite,
            stdout=screen.stdout_above_bar() if output.output == "-" else None,
            header=header,
        )
        yield RunOutput(sink, settings)
        return
    with open_state(plan, destination, settings) as state:
        screen.on_message = state.log.write
        state.log.write("pgcli " + " ".join(map(without_credentials, plan.options.arguments)))
        if state.record is None or CONFIDENCE in state.record.settings:
            settings[CONFIDENCE] = True
        state.check_settings(dict(settings), input_metadata(plan))
        with state.file_lists() as lists:
            input.source.pin_files(lists)
            state.lists.store_scans(input.source.new_scans())
            if ALL in input.options.input.keep:
                settings["kept_columns"] = list(input.source.kept)
            if destination.format == "folder":
                input.chunk_rows = pin_chunk_rows(input, state, lists)
                if state.record is None or ROWS_PER_FILE in state.record.settings:
                    settings[ROWS_PER_FILE] = input.chunk_rows
        state.check_settings(dict(settings), input_metadata(plan))
        yield open_saved_rows(input, state, settings, screen)


def open_state(
    plan: Plan, destination: Destination, settings: dict[str, object]
) -> AbstractContextManager[RunState]:
    """The state of the output, on a file system or in an object store."""
    output, rules = plan.options.output, resume_rules(plan)
    if plan.is_stored:
        return open_stored_run(
            output.output, overwrite=output.overwrite, part=plan.part, rules=rules
        )
    return open_run(
        Path(output.output),
        settings,
        overwrite=output.overwrite,
        keep_old=destination.format == "parquet",
        part=plan.part,
        rules=rules,
    )


def has_unchanged_image(input: RunInput, output: RunOutput) -> Callable[[int], bool]:
    """Whether the image of a saved row, by its index, is in a table that has not changed since.

    With `--verify-input` every table may have.
    """
    sink = output.sink
    if not isinstance(sink, ResumableSink) or input.options.running.verify_input:
        return lambda row_index: False
    return partial(sink.is_unchanged, input.source.table_statuses)


def pin_chunk_rows(input: RunInput, state: RunState, lists: Callable[[int], Path]) -> int:
    """The number of rows in a chunk, as the first run or the first shard of the output chose it.

    Until there is a record of the run, the number is in a file beside the lists of input files.
    """
    if state.record is not None:
        return stored_chunk_rows(state.record.settings)
    rows = input.plan.chunk_rows(input.rows_of_all_shards)
    file = lists(0).with_name(f"{lists(0).name}.chunks")
    if input.plan.options.output.rows_per_file is None and file.exists():
        return stored_chunk_rows(read_json(file) or {})
    write_json(file, {ROWS_PER_FILE: rows}, replace=True)
    return rows


def open_saved_rows(
    input: RunInput, state: RunState, settings: dict[str, object], screen: Screen
) -> RunOutput:
    """The output with the rows that are saved; with `--retry-errors`, without the error rows."""
    plan = input.plan
    opening = partial(
        open_resumable,
        state,
        replace(input.row_schema, confidence=CONFIDENCE in settings),
        output_format(plan.options.output.output, plan.options.output.format),
        settings=settings,
        shard=plan.shard,
        types=partial(kept_column_types, input),
        retries_earlier=plan.options.running.retry_errors,
    )
    sink = opening()
    print_added(sink, state, screen)
    print_resume(sink, state, screen, retries=plan.options.running.retry_errors)
    retries = plan.options.running.retry_errors and bool(sink.errors)
    if retries:
        sink.close()
        sink = opening(retry=True)
    return RunOutput(sink, settings, state, sink.rows, sink.errors, retries)


def print_added(sink: ResumableSink, state: RunState, screen: Screen) -> None:
    """Print that prompts are added, and what becomes of the output."""
    if state.extends is None or state.record is None:
        return
    output, earlier = state.extends
    added = len(state.record.settings[PROMPTS]) - len(earlier.settings[PROMPTS])
    screen.info(
        f"adding {count(added, 'prompt')} to {output}: its rows are copied, and it is "
        "replaced once the new rows are answered"
    )


def publish(input: RunInput, output: RunOutput, screen: Screen) -> None:
    """Replace the output to which prompts were added, unless a limit left out some of its rows.

    Raises OutputExists for an input that is shorter than the output.
    """
    state = output.state
    if state is None or state.extends is None:
        return
    assert isinstance(output.sink, ResumableSink)
    if output.sink.has_earlier_rows(output.sink.rows):
        if input.options.input.limit is None:
            raise OutputExists(
                f"{state.name} has rows of more images than the input has",
                hint="name the whole input; another -o starts a new output",
            )
        screen.info(
            f"{state.name} is not replaced yet: it has rows beyond the limit of this run",
            hint="the same command without --limit adds the prompts to all rows",
        )
        return
    replace_output(state)


def print_resume(sink: ResumableSink, state: RunState, screen: Screen, *, retries: bool) -> None:
    """Print what an earlier run left, and what this run does with it."""
    if sink.torn:
        screen.info(
            f"{state.name} ended in the middle of a row: {sink.torn:,} bytes are kept in "
            f"{state.folder / 'torn'}, and the row is computed again"
        )
    if retries and sink.errors:
        screen.info(
            f"{sink.errors.total():,} rows with errors are asked again; {state.name} is "
            "replaced once all of them are answered"
        )
    elif sink.rows:
        screen.info(f"resuming {state.name}: {sink.rows:,} rows are saved")


def kept_column_types(input: RunInput) -> ColumnTypes:
    """The types of the kept columns: those of Parquet, or else those of all values.

    Where standard input is a source, unknown ones are text in a folder. A file of its own gets them
    when it is complete.
    """
    known = input.source.kept_types()
    unknown = [name for name, kind in known.items() if kind is None]
    if not unknown or not input.options.output.output.endswith("/"):
        return known
    from pgcli.sinks import column_types

    if input.source.total is None:
        return known | column_types.string_types(unknown)

    def rows() -> Iterator[Mapping[str, Any]]:
        for item in input.source.rows(needs_image=lambda index: False):
            yield to_json(dict(item.kept))

    return known | column_types.scan_types(unknown, rows)
