"""One run: answer what the request asks, save the rows, and return what was done."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from signal import Signals
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli.errors import (
    INCOMPLETE,
    NoInputError,
    OutputExists,
    OutputFailed,
    PgcliError,
    UsageError,
)
from pgcli.inputs import Inventory
from pgcli.pipeline import checks
from pgcli.pipeline.model import EngineInfo, RunModel
from pgcli.pipeline.output import RunOutput, SaveRow, check_record, join_output, recorded_inventory
from pgcli.pipeline.progress import events
from pgcli.pipeline.progress.plan import estimate, plan_facts
from pgcli.pipeline.progress.run_progress import RunProgress
from pgcli.pipeline.progress.shutdown import Interrupted
from pgcli.pipeline.progress.summary import Summary
from pgcli.pipeline.request.questions import text_lines
from pgcli.pipeline.retry import retry_rows
from pgcli.pipeline.rows import Numbered, RunRows, chunk_numbers
from pgcli.pipeline.settings import resumed_request
from pgcli.pipeline.state.folder import State, open_state
from pgcli.pipeline.state.open_files import Segment, errors_in
from pgcli.pipeline.state.processes import Process
from pgcli.pipeline.stream import answer_to_stream
from pgcli.pipeline.task import answer_function, question_facts
from pgcli.pipeline.workers.answer import Answers
from pgcli.pipeline.workers.engine_process import import_ahead
from pgcli.pipeline.workers.engines import run_engines
from pgcli.pipeline.workers.row_images import RowImages
from pgcli.pipeline.workers.worker import ChunkWorker, Report
from pgcli.records import Answer, DecodedImage, Item
from pgcli.tasks import AnyQuestion, EmbeddingQuestion
from pgcli.wording import count

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest
    from pgcli.results.row_hook import RowHook


def run(
    request: RunRequest,
    on_event: events.OnEvent = events.ignore,
    hooks: Sequence[RowHook] = (),
) -> Summary:
    """Answer what the request asks, save the rows, and return what was done. Resumes where it can.

    The hooks are called with each row as it is saved. Raises the errors of `pgcli.errors`, each
    before anything that is more work than the check: a wrong request before the input is read, a
    refused output before the model is loaded. A signal raises Interrupted once the rows in progress
    are saved. `run.summary` of an exception is what was done until then.
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
    """A run under way: its parts as they become known, and the order of its steps."""

    rows: RunRows
    output: RunOutput

    def __init__(self, request: RunRequest, on_event: events.OnEvent, hooks: Sequence[RowHook]):
        self.request, self.hooks = request, list(hooks)
        self.progress = RunProgress(request, on_event)
        self.tally, self.summary = self.progress.tally, self.progress.summary
        self.model = RunModel(request, self.progress)
        self.stack = ExitStack()
        self._has_read = 0  # the number of rows of standard input
        self._has_more = False  # than the built-in model answers

    def execute(self) -> None:
        """Check, open the input and the output, load the model, compute, complete the output."""
        request = self.request
        checks.check_request(request)
        import_ahead(request)
        if checks.is_stream(request):
            if request.running.dry_run:
                return self.show_plan()
            self.rows = self.read_input()
            answer_to_stream(self)
        else:
            state = open_state(request)
            if request.running.dry_run:
                check_record(state, request)
                return self.show_plan()
            self.answer_to_output(state)
        self.finish()

    def show_plan(self) -> None:
        """Show the plan and an estimate; nothing is written."""
        self.rows = self.read_input()
        facts = plan_facts(self.request, self.rows, question_facts(self.request))
        self.progress.show(events.FactTable(facts))
        if measured := estimate(self):
            self.progress.show(events.FactTable(measured))

    # the input

    def read_input(self, known: Inventory | None = None) -> RunRows:
        """Read the sources, and count their rows. Raises NoInputError and UsageError.

        Several engines, rows that are asked again, and a comparison with the recorded input need
        standard input as a whole; otherwise it is read as it arrives.
        """
        request, progress = self.request, self.progress
        retries = request.running.retry_errors or request.running.retry_changed
        with progress.counting() as track:
            spool = bool(request.model.engines) or retries or known is not None
            options = checks.read_options(request, track, spool=spool)
            if request.question.embeds_texts:
                inventory = Inventory.of_texts(texts_of(request.question), options)
            else:
                inventory = Inventory.scan(request.sources, options, known)
            if inventory.total is not None:
                progress.show(events.Progress(inventory.total))
        rows = RunRows(inventory, request.question, request.input.limit)
        self.summary.input_rows, self.summary.images = rows.total, rows.images
        self.summary.input_notes = inventory.notes
        checks.check_demo_limit(request, rows.images)
        checks.check_addressable(request, rows)
        if rows.per_item is not None and rows.last_prompts < rows.per_item:
            self.say_cut(rows.last_prompts, rows.per_item)
        if request.running.verbose:
            facts = plan_facts(request, rows, question_facts(request))
            progress.show(events.FactTable(facts))
        return rows

    def say_cut(self, prompts: int, total: int) -> None:
        """Say that the limit, which counts rows, leaves the last image without some prompts."""
        limit = self.request.input.limit
        self.progress.say(
            f"--limit {limit} counts rows: the last image has {prompts} of its {total} prompts",
            f"a multiple of {total} asks it all of them",
        )

    def arriving(self) -> Numbered:
        """All items with their first rows, as they arrive, up to the limit of a built-in model."""
        on_cut = None if self.rows.is_addressable else self.say_cut
        for number, (first, item) in enumerate(self.rows.stream(on_cut)):
            if number == checks.DEMO_IMAGES and self.request.model.model is None:
                self._has_more = True
                return
            self._has_read = first + len(item.prompts)
            yield first, item

    def check_end_of_input(self) -> None:
        """Raise for an input that ended with fewer rows than are saved, or without any."""
        rows, before = self.rows, self.tally.rows_before
        if self._has_more:
            checks.check_demo_limit(self.request, checks.DEMO_IMAGES + 1)
        is_over = not rows.is_addressable and self.request.input.limit is None
        if is_over and self._has_read < before:
            raise OutputExists(
                f"{self.output.state.name} has {before:,} rows, and the input makes only "
                f"{self._has_read:,}",
                hint="name the whole input; another -o starts anew, --overwrite replaces it",
            )
        if rows.inventory.total is None and not (self.tally.rows or before or self._has_read):
            raise NoInputError(
                "nothing came on standard input",
                hint="pipe in a path or a JSON object on each line, or name a folder",
            )

    # rows in an output that can be resumed

    def answer_to_output(self, state: State) -> None:
        """Answer the rows that are missing in the output, and complete it."""
        request = self.request
        shared = checks.shares_output(request)
        if shared and not state.store.is_conditional:
            raise UsageError(
                f"{state.name} is in a store that replaces objects that are only to be created",
                hint="one run at a time can write there: leave out --shard and --ray",
            )
        mode = "shared" if shared else "run"
        process = Process(state.store, mode)
        self.progress.state, self.progress.process = state, process
        self.open_output(state, process, mode)
        if self.output.is_complete and not self.retries:
            self.say_complete()
            self.output.remove_remains()
        elif request.model.ray is not None:
            from pgcli.pipeline.workers.ray_run import run_on_ray

            self.output.begin()
            run_on_ray(self)
            self.count_rows_of_others()
        elif request.input.shard is not None:
            self.share_chunks(process)
            self.count_rows_of_others()
        else:
            self.compute_missing(process)
            self.output.finish()

    def open_output(self, state: State, process: Process, mode: Any) -> None:
        """Lock the output, and compare it with the request and the input.

        Raises OutputInUse, and OutputExists for an output of something else.
        """
        request = self.request
        is_new = False

        def discard_if_empty(kind: type[BaseException] | None, *_: object) -> None:
            """Remove the state of a run that began here and saved nothing."""
            if is_new and state.replaced is None and not self.tally.rows:
                with suppress(PgcliError):
                    if not (hasattr(self, "output") and self.output.form.segments()):
                        state.discard(has_failed=kind is not None)

        self.stack.push(discard_if_empty)
        self.stack.enter_context(state.locked(mode, process))
        is_new = state.record is None
        self.stack.push(self.note_end(process))
        check_record(state, request)
        if state.record is not None:
            self.request = request = resumed_request(request, state.record)
            self.model = RunModel(request, self.progress)
        known = recorded_inventory(state, request)
        self.rows = self.read_input(known)
        self.output = RunOutput(state, request, self.rows, process)
        self.stack.callback(self.close_output, self.output)
        self.output.find_saved(self.tally)
        gone = self.output.compare(known)
        process.note(surplus=gone)  # for `pgcli status`
        if gone:
            verb = "belongs" if gone == 1 else "belong"
            self.progress.say(
                f"{count(gone, 'row')} {verb} to images that are not in the input any more",
                hint="--overwrite replaces the output by one without them",
            )
        if before := self.tally.rows_before:
            verb = "is" if before == 1 else "are"
            self.progress.say(f"resuming {state.name}: {count(before, 'row')} {verb} saved")
            if changes := self.output.changed_versions():
                self.progress.say(
                    f"the saved rows were made with other versions: {', '.join(changes)}",
                    hint="answers may differ slightly",
                )
            if self.hooks and self.rows.is_addressable:
                self.pass_to_hooks(self.output.saved(), is_saved=True)

    def close_output(self, output: RunOutput) -> None:
        """Flush the output. Rows that its store did not take are not saved, and do not count."""
        output.close()
        lines = output.files.held_lines()
        self.tally.rows -= len(lines)
        self.tally.errors -= errors_in(lines)

    @property
    def retries(self) -> bool:
        """Whether saved rows with errors, or of changed images, are asked again."""
        has_errors = self.request.running.retry_errors and bool(self.tally.errors_before)
        return has_errors or bool(self.output.changed)

    def say_complete(self) -> None:
        """Show that nothing is to be done."""
        errors = self.tally.errors_before.total()
        errors_note = f", {errors:,} with errors (--retry-errors asks them again)" if errors else ""
        rows = self.tally.rows_before
        saved = "the only row is" if rows == 1 else f"all {rows:,} rows are"
        self.progress.say(f"nothing to do: {saved} saved{errors_note}")

    def compute_missing(self, process: Process) -> None:
        """Compute the missing rows, here or in engine processes; then those with errors again."""
        request, output = self.request, self.output
        self.find_model()
        missing = output.missing()
        is_known = self.rows.total is not None
        slots = self.model.slots(sum(map(len, missing)) if is_known else None)
        if missing and (len(slots) > 1 or request.model.engines):
            output.begin()
            with self.progress.answering():
                in_order = bool(self.hooks)
                run_engines(self, slots, request, process, output.form.take, in_order=in_order)
        elif missing or not self.rows.is_addressable:
            is_whole = not self.tally.rows_before and self.rows.is_addressable
            items: Numbered = output.unsaved(self.arriving())
            if self.rows.is_addressable:
                items = (pair for rows in missing for pair in self.rows.numbered(rows))
            # a run that resumes always decodes in processes: the one before may have died of an
            # image, which becomes an error row then
            self.answer(items, self.saving(), images=self.rows.images if is_whole else None)
            self.check_end_of_input()
        else:
            output.begin()
            output.take_saved()
        if self.retries:
            retry_rows(self)

    @contextmanager
    def saving(self) -> Iterator[SaveRow]:
        """A block in which rows are saved in the output, which is this run's from now on."""
        self.output.begin()
        self.output.note_model(self.model.info)
        self.output.take_saved()
        with self.output.writing() as save:
            yield save

    def share_chunks(self, process: Process) -> None:
        """Compute the chunks that no other process of the output does."""
        shard, output = checks.shard_of(self.request), self.output
        chunks = chunk_numbers(output.record.chunk_rows, self.rows.total or 0)
        if shard is not None and not any(map(shard.has, chunks)):
            self.progress.say("nothing to do: the shard has no row of the input")
            return
        self.find_model()
        output.begin()
        folder, device = self.model.checkpoint.folder, self.request.model.device
        should_stop = self.progress.should_stop
        numbers = shard.has if shard else lambda number: True
        with RowImages(self.request, folder, device, should_stop, total=None) as images:
            engine = self.model.load(output.record)
            output.note_model(self.model.info)
            # as it was recorded first: another process may have scanned the input differently
            self.request = resumed_request(self.request, output.record)
            self.output = join_output(self.request, output.state.store, process)
            images.on_image = self.output.note_image
            worker = ChunkWorker(
                self.output,
                process,
                images,
                publishes=True,
                should_stop=should_stop,
                numbers=numbers,
            )
            with self.progress.answering():
                for report in worker.work(engine):
                    self.on_report(report)

    def count_rows_of_others(self) -> None:
        """Count the errors of rows that other processes have added to the output meanwhile.

        Of a shard only its own rows count: its exit code is not that of the others.
        """
        shard, file_rows = checks.shard_of(self.request), self.output.record.file_rows
        errors, segments = Counter[str](), self.output.form.segments()
        for segment in segments:
            if shard is None or shard.has(segment.first // file_rows):
                errors += segment.errors
        self.tally.errors_before = errors - self.tally.errors
        self.output.remove_claims(segments)

    def find_model(self) -> None:
        """Find the files of the model. Raises ModelUnavailable and InvalidCheckpoint."""
        self.model.find()
        if "-" in self.request.sources and sys.stdin is not None and sys.stdin.isatty():
            self.progress.say("reading paths from the terminal, one on each line; Ctrl-D ends them")

    # answers

    def answer(
        self,
        items: Numbered,
        sink: AbstractContextManager[SaveRow],
        *,
        images: int | None,
        on_image: Callable[[DecodedImage], object] | None = None,
    ) -> None:
        """Answer items in this process, in one continuous batch, and save their rows in the sink.

        Of so many `images`, if it is known; None has them decoded in processes in any case. The
        sink is opened once the model is loaded. `on_image` is called with each image.
        """
        with self.decoding(items, images) as decoded:
            if on_image is not None:
                decoded.on_image = on_image
            elif self.progress.state is not None:
                decoded.on_image = self.output.note_image
            answers = self.load()
            with self.progress.answering(), sink as save:
                for number, item, row in answers(decoded.take(None, self.tally)):
                    save(number, row)
                    self.tally.count(row)
                    self.pass_to_hooks([(number, item, row)])
                    self.progress.update(row)

    def decoding(self, items: Numbered, images: int | None) -> RowImages:
        """The images of items, which are decoded from now on."""
        decoded = RowImages(
            self.request,
            self.model.checkpoint.folder,
            self.request.model.device,
            self.progress.should_stop,
            total=images,
            pauses=self.rows.inventory.total is None,
            keeps_items=bool(self.hooks),
        )
        decoded.prepare(items)
        decoded.prepare(None)
        return decoded

    def load(self) -> Answers:
        """What answers images with the model, which is loaded into this process."""
        record = None if self.progress.state is None else self.output.record
        engine = self.model.load(record)
        return answer_function(self.request, engine, self.progress.should_stop)

    def pass_to_hooks(
        self, rows: Iterable[tuple[int, Item, Answer]], *, is_saved: bool = False
    ) -> None:
        """Pass rows to what is made beside them; `is_saved` if an earlier run has saved them."""
        for _, item, row in rows:
            for hook in self.hooks:
                hook.on_row(row, item, is_saved=is_saved)

    def on_engine(self, info: EngineInfo) -> None:
        """Note what is known of an engine in another process.

        Raises OutputExists for another model than before, and NoUsableDevice for one that is not
        that of the engines before.
        """
        self.model.note(info, None if self.progress.state is None else self.output.record)
        if not self.output.record.model:
            self.output.note_model(info)

    def on_report(
        self, report: Report, take: Callable[[Segment], None] = lambda segment: None
    ) -> None:
        """Count a chunk that another process has computed, and `take` its open files.

        Raises TooManyErrors.
        """
        for segment in self.output.add(report):
            take(segment)
            if segment not in report.segments:  # of a process that has died
                self.tally.rows += segment.rows
                self.tally.errors.update(segment.errors)
        self.summary.hits, self.summary.prompts = report.hits, report.prompts
        self.progress.show_limits(report.limits)
        self.progress.add(report.tally)

    # the end

    def finish(self) -> None:
        """Complete what is made beside rows, and fill the summary."""
        facts: list[tuple[str, str]] = []
        while self.hooks:
            facts.extend(self.hooks.pop(0).finish(complete=True))
        summary = self.summary
        summary.hook_facts = facts
        if self.model.engine is not None:
            images = self.model.engine.image_stats
            summary.hits, summary.prompts = images.hits, images.prompts
            self.progress.show_limits(self.progress.limits())
        summary.seconds = perf_counter() - self.progress.began
        summary.exit_code = INCOMPLETE if self.tally.all_errors else 0
        if self.progress.state is not None and summary.engine is not None:
            for name, text in summary.facts():
                self.progress.state.log(f"{name}: {text}")

    def note_end(self, process: Process) -> Any:
        """What leaves in the process's file how the run ended and what it learned."""

        def note(kind: Any, problem: BaseException | None, trace: Any) -> None:
            if isinstance(problem, PgcliError) and self.model.info is None:
                with suppress(OutputFailed):
                    process.remove()  # it was refused: the output is as it was
                return
            errors = INCOMPLETE if self.tally.all_errors else 0
            if self.summary.input_rows is not None:
                self.progress.note_counts()
            process.note(exit_code=errors if problem is None else exit_code(problem))
            if process.values["mode"] == "run":
                with suppress(PgcliError):  # the first problem is the one to report
                    process.remove_dead()
            if self.model.engine is not None:
                engine = self.model.engine
                process.note(limits={engine.device: engine.batch_limits.state_dict()})

        return note


def texts_of(question: AnyQuestion) -> list[str]:
    """The texts that are the items, from the command and from its file. Raises UsageError."""
    assert isinstance(question, EmbeddingQuestion)
    file = question.texts_file
    return [*question.texts, *([] if file is None else text_lines(file, noun="text"))]


def exit_code(problem: object) -> int:
    """The exit code of a command that the exception ends."""
    if isinstance(problem, PgcliError):
        return problem.exit_code
    signum = getattr(problem, "signum", None)
    return 1 if signum is None else 128 + int(signum)


def describe_problem(problem: BaseException) -> str:
    """What ended a run, in its summary."""
    if isinstance(problem, Interrupted):
        return f"ended by {Signals(problem.signum).name}"
    is_known = isinstance(problem, PgcliError)
    return str(problem) if is_known else f"{type(problem).__name__}: {problem}"
