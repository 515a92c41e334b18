"""One run: answer what the request asks, save the rows, and return what was done."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from signal import Signals
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.engine.image_spec import read_image_spec
from pgcli.errors import NoInputError, OutputExists, OutputFailed, PgcliError, UsageError
from pgcli.inputs import Inventory
from pgcli.records import Answer, Item
from pgcli.run import checks, events
from pgcli.run.output import RunOutput, SaveRow, check_record, recorded_inventory
from pgcli.run.plan import estimate, plan_facts
from pgcli.run.progress import RunProgress
from pgcli.run.request.questions import text_lines
from pgcli.run.retry import retry_errors
from pgcli.run.rows import RunRows
from pgcli.run.shutdown import Interrupted
from pgcli.run.state.folder import State, open_state
from pgcli.run.state.open_files import Segment
from pgcli.run.state.processes import Process, others
from pgcli.run.stream import Save, StreamedRows, open_stream
from pgcli.run.summary import INCOMPLETE, Summary
from pgcli.run.task import find_checkpoints, load_engine, notices, question_facts
from pgcli.run.workers.compute import Computer, Numbered, RowImages
from pgcli.run.workers.engine_process import EngineSlot, engine_slots, import_ahead
from pgcli.run.workers.engines import run_engines
from pgcli.run.workers.worker import (
    ChunkWorker,
    EngineInfo,
    Report,
    check_equal,
    engine_info,
    row_schema,
)
from pgcli.tasks import AnyQuestion, EmbeddingQuestion
from pgcli.wording import count

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest
    from pgcli.views.row_hook import RowHook


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
    engine: Any = None

    def __init__(self, request: RunRequest, on_event: events.OnEvent, hooks: Sequence[RowHook]):
        self.request, self.hooks = request, list(hooks)
        self.progress = RunProgress(request, on_event)
        self.tally, self.summary = self.progress.tally, self.progress.summary
        self.stack = ExitStack()
        self._has_read = 0  # the number of rows of standard input
        self._has_more = False  # than the built-in model answers

    def execute(self) -> None:
        """Check, open the input and the output, load the model, compute, complete the output."""
        request = self.request
        checks.check_request(request)
        name = checks.format_of(request)
        import_ahead(request)
        if name == "stream" or name == "text":
            if request.running.dry_run:
                return self.show_plan()
            self.rows = self.read_input()
            self.answer_to_stream()
        else:
            state = open_state(request, name)
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

    def read_input(self, known: Inventory | None = None, *, spool: bool = False) -> RunRows:
        """Read the sources, and count their rows. Raises NoInputError and UsageError."""
        request, progress = self.request, self.progress
        with progress.counting() as track:
            options = checks.read_options(request, track, spool=spool)
            if request.question.embeds_texts:
                inventory = Inventory.of_texts(texts_of(request.question), options)
            else:
                inventory = Inventory.scan(request.sources, options, known)
            if inventory.total is not None:
                progress.show(events.Progress(inventory.total))
        rows = RunRows(inventory, request.question, request.input.limit)
        self.summary.input_rows, self.summary.images = rows.total, rows.images
        self.summary.ignored = inventory.ignored
        checks.check_demo_limit(request, rows.images)
        checks.check_addressable(request, rows)
        if request.running.verbose:
            facts = plan_facts(request, rows, question_facts(request))
            progress.show(events.FactTable(facts))
        return rows

    def arriving(self) -> Numbered:
        """All items with their first rows, as they arrive, up to the limit of a built-in model."""
        for number, (first, item) in enumerate(self.rows.stream()):
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

    # rows that no later run resumes

    def answer_to_stream(self) -> None:
        """Answer all images, and write their rows to standard output or as text."""
        request = self.request
        schema = row_schema(request, self.rows.inventory.kept, exact=False)
        checkpoint, adapter = self.find_model()
        slots = self.slots(checkpoint, self.rows.total)
        with open_stream(request.output, schema, self.progress.show) as save:
            if len(slots) > 1 or request.model.engines:
                self.stream_from_engines(slots, save)
                return
            asked = (
                (first, item)
                for first, item in self.arriving()
                if not any(hook.skips(item) for hook in self.hooks)
            )
            sink = nullcontext(lambda number, row: save(row))
            self.answer(asked, sink, checkpoint, adapter, schema, images=self.rows.images)
        self.check_end_of_input()

    def stream_from_engines(self, slots: list[EngineSlot], save: Save) -> None:
        """Answer on several engines, and write the rows in their order as chunks are complete.

        The engines share an output in a temporary folder.
        """
        with TemporaryDirectory(prefix="pgcli-") as folder:
            output = replace(
                self.request.output, output=f"{folder}/rows.jsonl", format="auto", overwrite=False
            )
            request = replace(self.request, output=output)
            state = open_state(request, "jsonl")
            process = Process(state.store, "run")
            with process.registered():
                self.output = RunOutput(state, request, self.rows, process, self.tally)
                self.output.begin()
                stream = StreamedRows(save, self.output.files, self.output.schema)
                with self.progress.answering():
                    run_engines(self, slots, request, process, stream.take, in_order=True)

    # rows in an output that can be resumed

    def answer_to_output(self, state: State) -> None:
        """Answer the rows that are missing in the output, and complete it."""
        request = self.request
        shared = checks.shares_output(request)
        if shared and not state.store.is_conditional:
            raise UsageError(
                f"{state.name} is in a store that replaces objects that are only to be created",
                hint="one run at a time can write there: leave out --join, --shard and --ray",
            )
        mode = "shared" if shared else "run"
        process = Process(state.store, mode)
        self.progress.state, self.progress.process = state, process
        self.open_output(state, process, mode)
        if self.output.is_complete and not self.retries:
            self.say_complete()
            self.output.remove_remains()
        elif request.input.shard is not None or request.model.join:
            self.share_chunks(process)
        elif request.model.ray is not None:
            from pgcli.run.workers.ray_run import run_on_ray

            self.output.begin()
            run_on_ray(self)
        else:
            self.compute_missing(process)
            self.output.finish()

    def open_output(self, state: State, process: Process, mode: Any) -> None:
        """Lock the output, and compare it with the request and the input.

        Raises OutputInUse, and OutputExists for an output of something else.
        """
        request = self.request
        is_new = False

        def discard_if_empty(*problem: object) -> None:
            """Remove the state of a run that began here and saved nothing."""
            if is_new and state.replaced is None and not self.tally.rows:
                with suppress(PgcliError):
                    if not (hasattr(self, "output") and self.output.form.segments()):
                        state.discard()

        self.stack.push(discard_if_empty)
        self.stack.enter_context(state.locked(mode, process))
        is_new = state.record is None
        self.stack.push(self.note_end(process))
        check_record(state, request)
        known = recorded_inventory(state, request)
        self.rows = self.read_input(known, spool=bool(request.model.engines))
        self.output = RunOutput(state, request, self.rows, process, self.tally)
        self.stack.callback(self.output.close)
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

    @property
    def retries(self) -> bool:
        """Whether saved rows with errors are asked again."""
        return self.request.running.retry_errors and bool(self.tally.errors_before)

    def say_complete(self) -> None:
        """Show that nothing is to be done."""
        errors = self.tally.errors_before.total()
        errors_note = f", {errors:,} with errors (--retry-errors asks them again)" if errors else ""
        rows = self.tally.rows_before
        self.progress.say(f"nothing to do: all {rows:,} rows are saved{errors_note}")

    def compute_missing(self, process: Process) -> None:
        """Compute the missing rows, here or in engine processes; then those with errors again."""
        request, output = self.request, self.output
        checkpoint, adapter = self.find_model()
        missing = output.missing()
        slots = self.slots(checkpoint, sum(map(len, missing)))
        if missing and (len(slots) > 1 or request.model.engines):
            output.begin()
            with self.progress.answering():
                in_order = bool(self.hooks)
                run_engines(self, slots, request, process, output.take, in_order=in_order)
        elif missing or not self.rows.is_addressable:
            is_whole = not self.tally.rows_before and self.rows.is_addressable
            items: Numbered = output.unsaved(self.arriving())
            if self.rows.is_addressable:
                items = (pair for rows in missing for pair in self.rows.numbered(rows))
            # a run that resumes always decodes in processes: the one before may have died of an
            # image, which becomes an error row then
            images = self.rows.images if is_whole else None
            self.answer(
                items, self.saving(), checkpoint, adapter, output.line_schema, images=images
            )
            self.check_end_of_input()
        else:
            output.begin()
            output.take_saved()
        if self.retries:
            retry_errors(self, checkpoint, adapter)

    @contextmanager
    def saving(self) -> Iterator[SaveRow]:
        """A block in which rows are saved in the output, which is this run's from now on."""
        self.output.begin()
        self.note_model()
        self.output.take_saved()
        with self.output.writing() as save:
            yield save

    def share_chunks(self, process: Process) -> None:
        """Compute the chunks that no other process of the output does."""
        shard, output = checks.shard_of(self.request), self.output
        chunks = -(-(self.rows.total or 0) // output.record.chunk_rows)
        if shard is not None and not any(map(shard.has, range(chunks))):
            self.progress.say("nothing to do: the shard has no row of the input")
            return
        checkpoint, adapter = self.find_model()
        output.begin()
        engine = self.load(checkpoint, adapter)
        self.note_model()
        worker = ChunkWorker(
            self.request,
            process,
            publishes=True,
            should_stop=self.progress.should_stop,
            store=output.state.store,
        )
        with self.progress.answering():
            for report in worker.work(engine, shard.has if shard else lambda number: True):
                self.on_report(report)
        # other processes have added rows meanwhile
        errors = sum((segment.errors for segment in output.form.segments()), Counter[str]())
        self.tally.errors_before = errors - self.tally.errors

    # the model

    def find_model(self) -> tuple[Checkpoint, Checkpoint | None]:
        """The files of the model, after what should be known before waiting for answers."""
        for text, hint in notices(self.request):
            self.progress.say(text, hint)
        if "-" in self.request.sources and sys.stdin is not None and sys.stdin.isatty():
            self.progress.say("reading paths from the terminal, one on each line; Ctrl-D ends them")
        # what shows downloads, where the program has one
        downloads = getattr(self.progress.show, "downloads", lambda: None)()
        return find_checkpoints(self.request, downloads)

    def slots(self, checkpoint: Checkpoint, rows: int | None) -> list[EngineSlot]:
        """Where engines compute so many rows; here, where the rows are not known before."""
        model = self.request.model
        is_known = self.rows.total is not None and not self.request.question.embeds_texts
        if not is_known or (model.engines is None and not rows):
            return [EngineSlot(1)]
        size = total_bytes(checkpoint.folder)
        return engine_slots(model.engines, model.device, size, rows=rows or 0)

    def load(self, checkpoint: Checkpoint, adapter: Checkpoint | None) -> Any:
        """Load the model into this process."""
        request = self.request
        with self.progress.stage(f"loading {checkpoint.name}"):
            engine = load_engine(request, checkpoint, adapter, request.model.device)
        engine.starts_small = getattr(engine, "is_large", False)
        if (state := self.progress.state) is not None and state.record is not None:
            # begin with the batch sizes that an earlier run on the same device learned
            for process in others(state.store):
                limits = process.values.get("limits")
                if isinstance(limits, dict) and limits.get(engine.device):
                    engine.batch_limits.load_state_dict(limits[engine.device])
        self.engine, self.progress.limits = engine, engine.batch_limits.summary
        self.on_engine(engine_info(request, engine))
        return engine

    def on_engine(self, info: EngineInfo) -> None:
        """Note what is known of a loaded model. Raises OutputExists for another than before."""
        if self.summary.engine is not None:
            return
        self.summary.engine = info
        self.summary.loading_seconds = perf_counter() - self.progress.began
        if self.request.model.device == "auto" and info.device == "cpu":
            self.warn_unused_gpu()
        if self.progress.state is not None:
            compared = {**info.model}
            del compared["dtype_option"]  # the dtype that it means is compared
            self.output.record.check_model(compared, self.output.state.name)

    def on_further_engine(self, info: EngineInfo) -> None:
        """Note what is known of an engine in another process.

        Raises OutputExists for another model than before, and NoUsableDevice for one that is not
        that of the engines before.
        """
        self.on_engine(info)
        check_equal(self.output.record, info)
        if not self.output.record.model:
            self.note_model()

    def note_model(self) -> None:
        """Write what is known of the model into the record."""
        if self.summary.engine is not None:
            self.output.note_model(self.summary.engine)

    def warn_unused_gpu(self) -> None:
        """Say why the CPU is used on a machine with a GPU, unless the user has hidden the GPU."""
        from pgcli.device.nvidia_driver import find_gpu_problem

        if (problem := find_gpu_problem()) and not problem.is_intentional:
            self.progress.say(f"the CPU is used, not the GPU: {problem.found}", hint=problem.remedy)

    # answers

    def answer(
        self,
        items: Numbered,
        sink: AbstractContextManager[SaveRow],
        checkpoint: Checkpoint,
        adapter: Checkpoint | None,
        schema: Any,
        *,
        images: int | None,
    ) -> None:
        """Answer items in this process, in one continuous batch, and save their rows in the sink.

        The sink is opened once the model is loaded.
        """
        with self.computer(items, checkpoint, adapter, schema, images) as make:
            computer = make()
            with self.progress.answering(), sink as save:
                for number, item, row in computer.answers(None, self.tally):
                    save(number, row)
                    self.tally.count(row)
                    self.pass_to_hooks([(number, item, row)])
                    self.progress.update(row)

    @contextmanager
    def computer(
        self,
        items: Numbered,
        checkpoint: Checkpoint,
        adapter: Checkpoint | None,
        schema: Any,
        images: int | None,
    ) -> Iterator[Callable[[], Computer]]:
        """A block in which items are decoded, and what loads the model that answers them."""
        request, device = self.request, self.request.model.device
        if device == "auto":
            from pgcli.device.nvidia_driver import visible_gpus

            device = "cuda" if visible_gpus() else "cpu"
        spec, should_stop = read_image_spec(checkpoint.folder), self.progress.should_stop
        with RowImages(
            request,
            self.rows,
            spec,
            device,
            should_stop,
            total=images,
            keeps_items=bool(self.hooks),
        ) as decoded:
            decoded.prepare(items)
            decoded.prepare(None)

            def make() -> Computer:
                engine = self.load(checkpoint, adapter)
                return Computer(request, self.rows, decoded, engine, schema, should_stop)

            yield make

    def pass_to_hooks(
        self, rows: Iterable[tuple[int, Item, Answer]], *, is_saved: bool = False
    ) -> None:
        """Pass rows to what is made beside them; `is_saved` if an earlier run has saved them."""
        for _, item, row in rows:
            for hook in self.hooks:
                hook.on_row(row, item, is_saved=is_saved)

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
        if self.engine is not None:
            images = self.engine.image_stats
            summary.hits, summary.prompts = images.hits, images.prompts
            self.progress.show_limits(self.progress.limits())
        summary.seconds = perf_counter() - self.progress.began
        summary.exit_code = INCOMPLETE if self.tally.all_errors else 0

    def note_end(self, process: Process) -> Any:
        """What leaves in the process's file how the run ended and what it learned."""

        def note(kind: Any, problem: BaseException | None, trace: Any) -> None:
            if isinstance(problem, PgcliError) and self.summary.engine is None:
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
            if self.engine is not None:
                limits = self.engine.batch_limits.state_dict()
                process.note(limits={self.engine.device: limits})

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
