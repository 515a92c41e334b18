"""One run: the order of its steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import Signals
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli.errors import INCOMPLETE, NoInputError, OutputExists, PgcliError
from pgcli.inputs import Inventory
from pgcli.records import Item
from pgcli.run import checks, events
from pgcli.run.answering import Answering
from pgcli.run.checks import plan_facts
from pgcli.run.comparison import InputComparison, Retry
from pgcli.run.events import Interrupted
from pgcli.run.input_rows import Numbered, RunRows
from pgcli.run.model import RunModel, for_model
from pgcli.run.progress import RunProgress, Summary
from pgcli.run.questions import lines_of_file
from pgcli.run.run_output import (
    RunOutput,
    SaveLine,
    check_record,
    open_row_stream,
    record_inventory,
)
from pgcli.run.state.folder import State, load_inventory
from pgcli.run.state.lines import merge_ranges
from pgcli.run.state.record import resumed_request
from pgcli.stores import LocalStore
from pgcli.tasks import EmbeddingQuestion
from pgcli.text import count

if TYPE_CHECKING:
    from pgcli.results.hooks import RowHook
    from pgcli.run.request import RunRequest


def run(
    request: RunRequest,
    on_event: events.OnEvent = events.ignore,
    hooks: Sequence[RowHook] = (),
) -> Summary:
    """Answer the request, save the rows, and return the summary. Resumes an earlier run.

    The hooks get each saved row. Raises the errors of `pgcli.errors` as early as possible: for a
    wrong request before the input is read, for a refused output before the model is loaded. A
    signal raises Interrupted once the rows in progress are saved. Exceptions carry the `summary`.
    """
    current = Run(request, on_event, hooks)
    summary, began = current.progress.summary, current.progress.began
    try:
        with current.stack:
            current.execute()
    except BaseException as problem:
        current.progress.report_interruption(problem)
        while current.hooks:
            current.hooks.pop().finish(complete=False)
        summary.exit_code = exit_code(problem)
        summary.error, summary.hint = describe_problem(problem), getattr(problem, "hint", None)
        summary.seconds = perf_counter() - began
        problem.summary = summary  # type: ignore[attr-defined]
        raise
    return summary


class Run:
    """A run in progress."""

    rows: RunRows
    output: RunOutput
    comparison: InputComparison
    answering: Answering

    def __init__(self, request: RunRequest, on_event: events.OnEvent, hooks: Sequence[RowHook]):
        self.request, self.hooks = request, list(hooks)
        self.progress = RunProgress(request, on_event)
        self.tally, self.summary = self.progress.tally, self.progress.summary
        self.model = RunModel(request, self.progress)
        self.stack = ExitStack()
        self._has_read = 0  # rows of standard input
        self._has_more = False  # standard input has more images than the built-in model answers

    def execute(self) -> None:
        """Check, open the input and the output, load the model, compute, complete the output."""
        checks.check_request(self.request)
        self.request = request = for_model(self.request)
        self.model = RunModel(request, self.progress)
        if checks.is_stream(request):
            if request.running.dry_run:
                return self.show_plan()
            self.rows = self.read_input()
            self.answer_to_stream()
        else:
            output, shard = request.output, checks.shard_of(request)
            state = State(output.output, overwrite=output.overwrite, shard=shard)
            state.check()
            if request.running.dry_run:
                check_record(state, request)
                return self.show_plan()
            self.answer_to_output(state)
        self.finish()

    def show_plan(self) -> None:
        """Show the plan of `--dry-run`; nothing is written."""
        rows = self.read_input()
        self.progress.show(events.FactTable(plan_facts(self.request, rows)))

    # the input

    def read_input(self, known: Inventory | None = None) -> RunRows:
        """Read the sources and count their rows. Raises NoInputError and UsageError.

        Several engines, retries and resumed runs spool standard input; other runs stream it.
        """
        request, progress = self.request, self.progress
        retries = request.running.retry_errors or request.running.retry_changed
        with progress.counting() as track:
            spool = bool(request.model.engines) or retries or known is not None
            options = checks.read_options(request, track, spool=spool)
            if isinstance(request.question, EmbeddingQuestion) and request.question.embeds_texts:
                texts, file = request.question.texts, request.question.texts_file
                inventory = Inventory.of_texts([*texts, *lines_of_file(file, noun="text")], options)
            else:
                inventory = Inventory.scan(request.sources, options, known)
            if inventory.total is not None:
                progress.show(events.Progress(inventory.total))
        rows = RunRows(inventory, request.question, request.input.limit)
        self.summary.input_rows, self.summary.images = rows.total, rows.images
        self.summary.input_notes = inventory.notes
        checks.check_demo_limit(request, rows.images)
        checks.check_addressable(request, rows)
        if request.running.verbose:
            progress.show(events.FactTable(plan_facts(request, rows)))
        return rows

    def arriving(self) -> Numbered:
        """Stream all items with their first rows, up to the limit of a built-in model."""
        for number, (first, item) in enumerate(self.rows.stream()):
            if number == checks.DEMO_IMAGES and self.request.model.model is None:
                self._has_more = True
                return
            self._has_read = first + len(item.prompts)
            yield first, item

    def check_end_of_input(self) -> None:
        """Raise if the input had fewer rows than are saved, or none."""
        rows, before = self.rows, self.tally.rows_before
        if self._has_more:
            checks.check_demo_limit(self.request, checks.DEMO_IMAGES + 1)
        is_over = not rows.is_addressable and self.request.input.limit is None
        if is_over and self._has_read < before:
            raise OutputExists(
                f"{self.output.state.name} has {before:,} rows, but the input has only "
                f"{self._has_read:,}",
                hint="name the whole input; another <-o> starts a new run; <--overwrite> replaces "
                "the output",
            )
        if rows.inventory.total is None and not (self.tally.rows or before or self._has_read):
            raise NoInputError(
                "standard input is empty",
                hint="pipe in a path or a JSON object on each line, or name a folder",
            )

    # resumable outputs

    def answer_to_output(self, state: State) -> None:
        """Answer the missing rows of the output, and complete it."""
        self.progress.state = state
        self.open_output(state)
        if self.output.is_complete and not self.retries:
            self.say_complete()
            self.output.saved.begin()  # removes leftover logs
            return
        self.answer_missing()
        self.check_end_of_input()
        self.output.finish()
        if self.retries:
            self.retry()

    def open_output(self, state: State) -> None:
        """Become the owner of the output, and compare it with the request and the input.

        Raises OutputInUse, and OutputExists for an output of another run.
        """
        request = self.request
        self.stack.enter_context(state.owned(self.progress.say))
        self.stack.push(self.note_end(state))
        check_record(state, request)
        if state.record is not None:
            self.request = request = resumed_request(request, state.record)
            self.model = RunModel(request, self.progress)
        known, options = None, checks.read_options(request)
        self.is_first = state.record is None and state.replaced is None
        if state.record is not None:
            known = load_inventory(state.store, request.sources, options)
        self.rows = self.read_input(known)
        self.output = RunOutput(state, request, self.rows)
        self.stack.callback(self.output.close, self.tally)
        self.comparison = InputComparison(self.output)
        self.stack.callback(self.comparison.stamps.close)
        self.answering = Answering(
            request, self.progress, self.model, self.rows, self.hooks, self.output
        )
        self.output.find_saved(self.tally)
        gone = self.comparison.compare(known)
        self.output.note_command()
        if gone:
            verb = "belongs" if gone == 1 else "belong"
            self.progress.say(
                f"{count(gone, 'row')} {verb} to images that were removed from the input",
                hint="--overwrite writes the output again without them",
            )
        if before := self.tally.rows_before:
            verb = "is" if before == 1 else "are"
            self.progress.say(f"resuming {state.name}: {count(before, 'row')} {verb} saved")
            if self.hooks and self.rows.is_addressable:
                self.answering.pass_to_hooks(self.output.saved_answers(), is_saved=True)

    @property
    def retries(self) -> bool:
        """Whether the run retries failed rows or rows of changed images."""
        has_errors = self.request.running.retry_errors and bool(self.tally.errors_before)
        return has_errors or bool(self.comparison.changed)

    def say_complete(self) -> None:
        """Say that the output is already complete."""
        errors = self.tally.errors_before.total()
        if not self.tally.rows_before:
            self.progress.say("nothing to do: the input has no rows for this shard")
            return
        errors_note = f", {errors:,} of them failed (--retry-errors retries them)" if errors else ""
        rows = self.tally.rows_before
        saved = "the only row is" if rows == 1 else f"all {rows:,} rows are"
        self.progress.say(f"nothing to do: {saved} saved{errors_note}")

    def answer_missing(self) -> None:
        """Answer the missing rows, in this process or in others."""
        output, answering, missing = self.output, self.answering, self.output.missing()
        if self.rows.is_addressable and not missing:
            output.begin()
            return
        self.find_model()
        note_stamp = self.comparison.note_stamp
        if answering.has_workers(missing):
            state = output.state.store
            answering.elsewhere(missing, self.saving(), state, note_stamp=note_stamp)
            return
        items: Numbered = self.comparison.unsaved(self.arriving())
        if self.rows.is_addressable:
            items = self.rows.numbered_ranges(missing)
        # a later run always decodes in worker processes: an image may have killed the earlier one,
        # before its first row, and must become a failed row now
        images = self.rows.images if self.is_first and self.rows.is_addressable else None
        answering.here(items, self.saving(), images=images, note_stamp=note_stamp)

    @contextmanager
    def saving(self) -> Iterator[SaveLine]:
        """Begin the output, and yield what saves its rows."""
        self.output.begin()
        self.output.note_command(self.model.info)
        yield self.output.save

    def retry(self) -> None:
        """Retry failed rows and rows of changed images, and merge them into the output."""
        output, answering = self.output, self.answering
        retry = Retry(self.comparison, wants_errors=self.request.running.retry_errors)
        self.progress.say(retry.notice)
        self.tally.rows_before -= len(retry.missing)
        self.tally.errors_before = retry.errors_before(self.tally.errors_before)
        if retry.missing:
            self.find_model()
            sink, note_stamp, ranges = retry.saving(), retry.note_stamp, retry.ranges
            if answering.has_workers(ranges):
                answering.elsewhere(ranges, sink, output.state.store, note_stamp=note_stamp)
            else:
                chosen = self.rows.chosen(retry.missing)
                answering.here(chosen, sink, images=None, note_stamp=note_stamp)
        output.note_command(self.model.info)
        retry.merge()

    def answer_to_stream(self) -> None:
        """Answer all images, and write the rows to standard output or to a text file."""
        request, rows = self.request, self.rows
        answering = self.answering = Answering(request, self.progress, self.model, rows, self.hooks)
        self.find_model()
        ranges = [] if rows.total is None else [range(rows.total)]
        sink = open_row_stream(request, answering.schema, self.progress.show)
        if answering.has_workers(ranges):
            if self.hooks:
                asked = filter(self.is_asked, rows.numbered_ranges(ranges))
                ranges = merge_ranges(
                    range(first, first + len(item.prompts)) for first, item in asked
                )
            with TemporaryDirectory(prefix="pgcli-") as folder:
                state = LocalStore(Path(folder))
                record_inventory(rows.inventory, state)
                answering.elsewhere(ranges, sink, state)
            return
        answering.here(filter(self.is_asked, self.arriving()), sink, images=rows.images)
        self.check_end_of_input()

    def is_asked(self, numbered: tuple[int, Item]) -> bool:
        """Whether no hook skips the item."""
        return not any(hook.skips(numbered[1]) for hook in self.hooks)

    def find_model(self) -> None:
        """Find the files of the model. Raises ModelUnavailable and InvalidCheckpoint."""
        self.model.find()
        if "-" in self.request.sources and sys.stdin is not None and sys.stdin.isatty():
            self.progress.say("reading paths from the terminal, one per line; Ctrl-D ends")

    # the end

    def finish(self) -> None:
        """Complete the files of hooks, and fill the summary."""
        facts: list[tuple[str, str]] = []
        while self.hooks:
            facts.extend(self.hooks.pop(0).finish(complete=True))
        summary = self.summary
        summary.hook_facts = facts
        if self.model.engine is not None:
            images = self.model.engine.image_stats
            self.tally.hits, self.tally.prompts = images.hits, images.prompts
            self.progress.show_limits(self.progress.limits())
        summary.seconds = perf_counter() - self.progress.began
        summary.exit_code = INCOMPLETE if self.tally.all_errors else 0

    def note_end(self, state: State) -> Any:
        """An exit callback that writes into `owner.json` how the run ended."""

        def note(kind: Any, problem: BaseException | None, trace: Any) -> None:
            if isinstance(problem, PgcliError) and self.model.info is None:
                state.owner.restore()  # refused: the output is unchanged
                return
            self.progress.note_counts()
            errors = INCOMPLETE if self.tally.all_errors else 0
            state.owner.note(exit_code=errors if problem is None else exit_code(problem))

        return note


def exit_code(problem: object) -> int:
    """The exit code of a command that ends with this exception."""
    if isinstance(problem, PgcliError):
        return problem.exit_code
    signum = getattr(problem, "signum", None)
    return 1 if signum is None else 128 + int(signum)


def describe_problem(problem: BaseException) -> str:
    """The exception as the summary shows it."""
    if isinstance(problem, Interrupted):
        return f"ended by {Signals(problem.signum).name}"
    is_known = isinstance(problem, PgcliError)
    return str(problem) if is_known else f"{type(problem).__name__}: {problem}"
