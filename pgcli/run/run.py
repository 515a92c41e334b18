"""One run: answer what the request asks, save the rows, and return what was done."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from signal import SIGPIPE, Signals
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
from pgcli.run.hooks import Items
from pgcli.run.plan import estimate, plan_facts
from pgcli.run.request.questions import text_lines
from pgcli.run.retry import retry_errors
from pgcli.run.rows import FILE_ROWS, RunRows, claimed_rows
from pgcli.run.settings import check_model_files, input_settings, run_settings, versions
from pgcli.run.shutdown import GracefulShutdown, Interrupted
from pgcli.run.state.compare import check_saved_rows, difference, file_changed, input_changed
from pgcli.run.state.folder import State, open_state, recorded_inputs
from pgcli.run.state.forms import (
    FolderForm,
    Form,
    FormContext,
    LinesForm,
    ParquetForm,
    TextFile,
    error_rows,
    saved_rows,
    saved_values,
    stream_form,
    stream_writer,
)
from pgcli.run.state.open_files import Coverage, OpenFiles, Segment
from pgcli.run.state.processes import Process, others
from pgcli.run.state.record import RunRecord, now
from pgcli.run.summary import INCOMPLETE, Summary, interrupted_notice
from pgcli.run.task import find_checkpoints, load_engine, notices, question_facts
from pgcli.run.workers.compute import Computer, RowImages
from pgcli.run.workers.engine_process import EngineSlot, engine_slots, import_ahead
from pgcli.run.workers.engines import run_engines
from pgcli.run.workers.worker import ChunkWorker, EngineInfo, Report, engine_info, row_schema
from pgcli.stores import LocalStore, open_folder
from pgcli.tasks import AnyQuestion, EmbeddingQuestion
from pgcli.wording import count

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest
    from pgcli.views.row_hook import RowHook

UPDATE_SECONDS = 0.2  # between two signs of progress


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
    try:
        with current.stack:
            current.execute()
    except BaseException as problem:
        if current.shutdown is not None:
            current.report_interruption(problem)
        while current.hooks:
            current.hooks.pop().finish(complete=False)
        current.summary.exit_code = exit_code(problem)
        current.summary.error = describe_problem(problem)
        current.summary.hint = getattr(problem, "hint", None)
        current.summary.seconds = perf_counter() - current.began
        problem.summary = current.summary  # type: ignore[attr-defined]
        raise
    return current.summary


class Run:
    """A run under way: its parts as they become known."""

    rows: RunRows
    items: Items
    record: RunRecord
    form: Form | None = None
    process: Process | None = None

    def __init__(self, request: RunRequest, on_event: events.OnEvent, hooks: Sequence[RowHook]):
        self.request, self.hooks = request, list(hooks)
        self._on_event = on_event
        self.began = perf_counter()
        self.summary = Summary(request)
        self.tally = self.summary.tally
        self.stack = ExitStack()
        self.known_files: set[str] = set()  # open files whose rows are counted
        self.state: State | None = None
        self.budget = request.running.error_budget
        self._shown_at = 0.0

    def execute(self) -> None:
        """Check, open the input and the output, load the model, compute, complete the output."""
        request = self.request
        checks.check_request(request)
        name = checks.format_of(request)
        import_ahead(request)
        if request.running.dry_run:
            self.show_plan(name)
            return
        if name == "stream" or name == "text":
            self.read_input()
            self.items = Items(self.rows)
            self.compute_stream()
        else:
            self.state = open_state(request, name)
            self.compute_output(self.state)
        self.finish()

    def show_plan(self, name: checks.Format) -> None:
        """Check everything, and show the plan and an estimate; nothing is written."""
        if name != "stream" and name != "text":
            self.check_record(open_state(self.request, name))
        self.read_input()
        facts = plan_facts(self.request, self.rows, question_facts(self.request))
        self._on_event(events.FactTable(facts))
        if found := estimate(self):
            self._on_event(events.FactTable(found))

    def say(self, text: str, hint: str = "") -> None:
        """Show a message, and keep it in the log of the output."""
        if self.state is not None:
            self.state.log(text)
        self._on_event(events.Message(text, hint))

    @contextmanager
    def stage(
        self, task: str, total: int | None = None, initial: int = 0, unit: str = ""
    ) -> Iterator[None]:
        """A block in which a stage is shown."""
        self._on_event(events.Stage(task, total, initial, unit))
        try:
            yield
        finally:
            self._on_event(events.StageEnd())

    # the input

    def read_input(self, known: Inventory | None = None, *, spool: bool = False) -> None:
        """Read the sources, and count their rows. Raises NoInputError and UsageError."""
        request = self.request
        counted = 0

        def track(count: int) -> None:
            nonlocal counted
            counted += count
            if perf_counter() - self._shown_at >= UPDATE_SECONDS:
                self._shown_at = perf_counter()
                self._on_event(events.Progress(counted))

        options = checks.read_options(request, track, spool=spool)
        with self.stage("counting", unit=self.summary.unit):
            if request.question.embeds_texts:
                inventory = Inventory.of_texts(texts_of(request.question), options)
            else:
                inventory = Inventory.scan(request.sources, options, known)
            self._on_event(events.Progress(counted if inventory.total is None else inventory.total))
        self.rows = RunRows(inventory, request.question, request.input.limit)
        self.summary.input_rows, self.summary.images = self.rows.total, self.rows.images
        self.summary.ignored = inventory.ignored
        checks.check_demo_limit(request, self.rows.images)
        checks.check_addressable(request, self.rows)
        if request.running.verbose:
            facts = plan_facts(request, self.rows, question_facts(request))
            self._on_event(events.FactTable(facts))

    # rows to standard output, or as text

    def compute_stream(self) -> None:
        """Answer all images and write their rows as they come; several engines take a folder."""
        request, output = self.request, self.request.output
        schema = row_schema(request, self.rows.inventory.kept, exact=False)
        text = None
        if output.output == "-":
            stream = output_stream(self._on_event)
            is_terminal = stream.isatty()
            is_text = output.format == "text" or (output.format == "auto" and is_terminal)
            form = stream_form(
                schema, stream_writer(stream), is_text=is_text, ascii_only=is_terminal
            )
        else:
            text = TextFile(Path(output.output), overwrite=output.overwrite)
            form = stream_form(schema, text.write, is_text=True, ascii_only=False)
        checkpoint, adapter = self.find_model()
        slots = self.slots(checkpoint)
        if len(slots) > 1 or request.model.engines:
            return self.compute_stream_by_engines(slots, form.save)
        is_complete = False
        try:
            with self.computer(checkpoint, adapter, schema, self.rows.images) as (images, make):
                images.prepare(self.stream())
                images.prepare(None)
                computer = make()
                with self.answering(initial=0):
                    for number, row in computer.answers(None, self.tally):
                        form.save(row)
                        self.count(number, row)
            is_complete = True
        finally:
            if text is not None:
                text.close(is_complete=is_complete)
        self.check_end_of_input()

    def stream(self) -> Iterator[tuple[int, Any]]:
        """All items with their rows; those that hooks skip are left out, as they have a text."""
        numbered = self.first_images(self.rows.stream())
        if not self.hooks:
            return numbered
        asked = self.not_skipped(numbered)
        return asked if self.rows.is_addressable else self.items.keep(asked)

    def not_skipped(self, numbered: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """The items that hooks do not skip."""
        for first, item in numbered:
            self.has_read = first + 1
            if not any(hook.skips(item) for hook in self.hooks):
                yield first, item

    def first_images(self, numbered: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """The items that a built-in model answers without being named."""
        for number, (first, item) in enumerate(numbered):
            if number == checks.DEMO_IMAGES and self.request.model.model is None:
                self.has_more = True
                return
            yield first, item

    has_more = False

    def pass_saved(self) -> None:
        """Pass the rows that earlier runs saved to what is made beside rows."""
        form = self.form
        if form is None or not (self.hooks and self.tally.rows_before and self.rows.is_addressable):
            return
        for number, row in saved_rows(form, self.files, self.segments, self.schema):
            item = self.items.of(number)
            for hook in self.hooks:
                hook.on_row(row, item, is_saved=True)
        self.items = Items(self.rows)

    # rows in an output that can be resumed

    def compute_output(self, state: State) -> None:
        """Answer the rows that are missing in the output, and complete it."""
        request = self.request
        shared = checks.shares_output(request)
        if shared and not state.store.is_conditional:
            raise UsageError(
                f"{state.name} is in a store that replaces objects that are only to be created",
                hint="one run at a time can write there: leave out --join, --shard and --ray",
            )
        process = self.process = Process(state.store, "shared" if shared else "run")
        self.stack.push(self.discard_if_empty)
        self.stack.enter_context(state.locked("shared" if shared else "run", process))
        self.is_new = state.record is None
        self.stack.push(self.note_end(process))
        self.stack.push(self.close_output)
        self.check_record(state)
        known = self.recorded_inventory(state)
        self.read_input(known, spool=bool(request.model.engines))
        self.items = Items(self.rows)
        self.open_output(state, process)
        self.compare(state, known)
        self.pass_saved()
        if self.is_complete():
            self.say_complete()
            self.remove_remains(state, process, self.coverage_end())
            return
        if checks.shard_of(request) is not None or request.model.join:
            return self.compute_shared(state, process)
        if request.model.ray is not None:
            from pgcli.run.workers.ray_run import run_on_ray

            self.begin(state)
            return run_on_ray(self, state, process)
        checkpoint, adapter = self.find_model()
        slots = self.slots(checkpoint)
        if self.missing() and (len(slots) > 1 or request.model.engines):
            self.begin(state)
            with self.answering(initial=self.tally.rows_before):
                run_engines(self, slots, request, process)
        elif self.missing() or not self.rows.is_addressable:
            self.compute_alone(state, process, checkpoint, adapter)
        else:
            self.begin(state)
            self.take_saved()
        if request.running.retry_errors and self.tally.errors_before:
            retry_errors(self, checkpoint, adapter)
        if self.record.begun and self.form is not None:
            self.form.finish(self.total_rows())
            self.form.close()
            self.remove_remains(state, process, self.total_rows())

    def remove_remains(self, state: State, process: Process, end: int) -> None:
        """Remove what killed processes left beside an output that is complete up to row `end`.

        Files with rows after it stay: they are beyond --limit.
        """
        alive = {other.id for other in others(state.store, process.id) if other.is_alive}
        kept = {segment.name for segment in self.segments if segment.end > end}
        with suppress(OutputFailed):
            self.files.remove(name for name in self.files.names(alive) if name not in kept)
            process.remove_claims()

    def check_record(self, state: State) -> None:
        """Raise OutputExists if the output belongs to another run."""
        if state.record is None:
            return
        request = self.request
        is_moved = request.running.moved
        settings, given = run_settings(request), request.output.rows_per_file
        if given is None:  # as the run began
            settings["rows_per_file"] = state.record.settings.get("rows_per_file")
        state.record.check_settings(settings, state.name, is_moved=is_moved)
        check_model_files(request, state.record, state.name)

    def recorded_inventory(self, state: State) -> Inventory | None:
        """The input as earlier processes of the run found it."""
        files = [] if state.overwrite else recorded_inputs(state.store)
        if not files or (state.record is None and not self.has_company(state)):
            return None
        return Inventory.load(files, self.request.sources, checks.read_options(self.request))

    def has_company(self, state: State) -> bool:
        """Whether other processes are beginning the same run at this moment."""
        return checks.shares_output(self.request) and any(o.is_alive for o in others(state.store))

    def open_output(self, state: State, process: Process) -> None:
        """Find the rows that are saved."""
        request, total = self.request, self.rows.total
        if state.record is not None:
            self.record = state.record
        else:
            chunk_rows, file_rows = self.sizes(total)
            self.record = RunRecord(
                token_hex(8),
                run_settings(request),
                input_settings(request),
                chunk_rows=chunk_rows,
                file_rows=file_rows,
                versions=versions(),
                arguments=request.arguments,
            )
        is_lines = state.format == "jsonl"
        keep = self.rows.inventory.kept
        schema = row_schema(request, keep, exact=not is_lines)
        self.files = OpenFiles(state.store, process.id)
        context = FormContext(lambda: self.record, schema, self.rows.kept, self.files)
        self.context = context
        has_columns = is_lines or not self.rows.is_addressable
        self.line_schema = schema if has_columns else replace(schema, keep=())
        output = Path(request.output.output)
        if is_lines:
            self.form = LinesForm(output, context)
        elif state.format == "parquet":
            self.form = ParquetForm(output, context)
        else:
            folder = (
                open_folder(request.output.output, create=True)
                if state.is_stored
                else (LocalStore(output, create=True, follow=True))
            )
            self.form = FolderForm(folder, context, self.record.file_rows)
        self.schema = schema
        self.segments: list[Segment] = []
        if state.record is not None:
            alive = {o.id for o in others(state.store, process.id) if o.is_alive}
            self.segments = [*self.form.segments(), *self.files.segments(alive)]
        self.known_files = {segment.name for segment in self.segments}
        self.coverage = Coverage(self.segments)
        for segment in self.segments:
            self.tally.errors_before.update(segment.errors)
        self.tally.rows_before = self.coverage.count(total)

    def sizes(self, total: int | None) -> tuple[int, int]:
        """The rows in a chunk and in a file of a new output."""
        request, shard = self.request, checks.shard_of(self.request)
        given = request.output.rows_per_file
        if total is None:
            return given or FILE_ROWS, given or FILE_ROWS
        if shard is not None:
            rounds = max(1, -(-total // (FILE_ROWS * shard.count)))
            rows = given or max(1, -(-total // (rounds * shard.count)))
            return rows, rows
        rows = claimed_rows(total)
        if checks.shares_output(request) or (self.state is not None and self.state.is_stored):
            return given or rows, given or rows
        if given:
            return min(rows, given), given
        return rows, rows * (FILE_ROWS // rows)

    def compare(self, state: State, known: Inventory | None) -> None:
        """Compare the input with the recorded one and with saved rows; record what is new.

        Raises OutputExists for an input that has changed.
        """
        inventory, is_moved = self.rows.inventory, self.request.running.moved
        if known is not None:
            per_item = self.rows.per_item or 1

            if (change := inventory.changes(self.has_answers, moved=is_moved)) is not None:
                raise file_changed(state.name, change)
            gone = sum(map(len, inventory.gone())) * per_item
            if self.process is not None:
                self.process.note(surplus=gone)  # for `pgcli status`
            if gone:
                verb = "belongs" if gone == 1 else "belong"
                self.say(
                    f"{count(gone, 'row')} {verb} to images that are not in the input any more",
                    hint="--overwrite replaces the output by one without them",
                )
        if self.tally.rows_before and self.form is not None:
            check_saved_rows(self, is_moved=is_moved)
        if self.tally.rows_before:
            verb = "is" if self.tally.rows_before == 1 else "are"
            saved = f"{count(self.tally.rows_before, 'row')} {verb} saved"
            self.say(f"resuming {state.name}: {saved}")
            self.say_versions()

    def say_versions(self) -> None:
        """Say which libraries have changed since the saved rows; the next command finds its own."""
        before = self.record.versions
        changes = [
            f"{name} {before[name]} -> {version}"
            for name, version in versions().items()
            if before.get(name, version) != version
        ]
        if changes and self.record.begun:
            self.say(
                f"the saved rows were made with other versions: {', '.join(changes)}",
                hint="answers may differ slightly",
            )

    def has_answers(self, items: range) -> bool:
        """Whether rows of these items are saved that are not error rows."""
        per_item, coverage = self.rows.per_item or 1, self.coverage
        start, stop = items.start * per_item, items.stop * per_item
        saved = coverage.count(stop) - coverage.count(start)
        if saved and self.error_rows is None:
            assert self.form is not None
            self.error_rows = sorted(error_rows(self.form, self.files, self.segments))
        errors = self.error_rows or []
        return saved > bisect_left(errors, stop) - bisect_left(errors, start)

    error_rows: list[int] | None = None

    def begin(self, state: State) -> None:
        """Make the output this run's: its record and its input are written before the first row."""
        if self.record.begun and state.record is not None:
            state.start_log(self.request.arguments)
            self.store_inventory(state)
            return
        form = self.form
        assert form is not None
        if state.overwrite:
            form.remove()
        self.record = state.begin(replace(self.record, begun=now()))
        state.start_log(self.request.arguments)
        self.store_inventory(state)

    def store_inventory(self, state: State) -> None:
        """Write the generations of the input that are not recorded yet."""
        inventory = self.rows.inventory
        if inventory.total is None:
            return
        recorded = len(recorded_inputs(state.store))
        for number in range(recorded, len(inventory.generations)):
            state.store.create(f"inputs/{number}.arrow", inventory.to_arrow(number))

    def missing(self) -> list[range]:
        """The rows that are neither in the output nor beside it."""
        total = self.rows.total
        return [] if total is None else list(self.coverage.missing(0, total))

    def is_complete(self) -> bool:
        """Whether every row is saved in the output, and none is asked again."""
        state = self.state
        if not self.rows.is_addressable or self.form is None or state is None:
            return False
        is_retried = self.request.running.retry_errors and self.tally.errors_before
        final = Coverage(segment for segment in self.segments if not segment.name)
        total = self.rows.total or 0
        return final.count(total) >= total and state.record is not None and not is_retried

    def say_complete(self) -> None:
        """Show that nothing is to be done."""
        errors = self.tally.errors_before.total()
        with_errors = f", {errors:,} with errors" if errors else ""
        if errors and checks.is_resumable(self.request):
            with_errors += " (--retry-errors asks them again)"
        self.say(f"nothing to do: all {self.tally.rows_before:,} rows are saved{with_errors}")

    def total_rows(self) -> int:
        """The number of rows that the output has when it is complete."""
        total, end = self.rows.total, self.coverage.end_of(0)
        return end if total is None else max(total, end)  # more than --limit may be saved

    def known_total(self) -> int | None:
        """`total_rows`, where it is known before the input is read."""
        return None if self.rows.total is None else self.total_rows()

    # one process

    def compute_alone(
        self, state: State, process: Process, checkpoint: Checkpoint, adapter: Checkpoint | None
    ) -> None:
        """Answer the missing rows in this process, in one continuous batch."""
        form = self.form
        assert form is not None
        is_new = not self.tally.rows_before
        total = self.rows.images if is_new and self.rows.is_addressable else None
        with self.computer(checkpoint, adapter, self.line_schema, total) as (images, make):
            if self.rows.is_addressable:
                for rows in self.missing():
                    images.prepare(rows)
            else:
                images.prepare(self.unsaved_stream())
            images.prepare(None)
            computer = make()
            self.begin(state)
            self.note_model(state)
            self.take_saved()
            with self.answering(initial=self.tally.rows_before):
                writer = DirectWriter(form, self.files, self.known_total())
                try:
                    for number, row in computer.answers(None, self.tally):
                        writer.save(number, computer.line(row))
                        self.coverage.add(number, number + 1)
                        self.count(number, row)
                finally:
                    writer.close()
        self.check_end_of_input()

    def take_saved(self) -> None:
        """Put the rows that earlier processes left in open files into the output."""
        assert self.form is not None
        for segment in self.segments:
            if segment.name:
                self.form.take(segment, self.known_total())

    def unsaved_stream(self) -> Iterator[tuple[int, Any]]:
        """The items of standard input whose rows are not saved, with their rows."""
        numbered = self.first_images(self.rows.stream())
        known = self.saved_values()
        for first, item in numbered:
            rows = range(first, first + len(item.prompts))
            saved = self.coverage.end_of(first)
            for number, prompt in zip(rows, item.prompts, strict=True):
                if number < saved:
                    self.check_same(next(known), item, prompt)
            self.has_read = rows.stop
            if saved < rows.stop:
                missing = replace(item, prompts=item.prompts[saved - first :])
                if self.hooks:
                    list(self.items.keep(iter([(saved, missing)])))
                yield saved, missing

    def saved_values(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The saved rows with their numbers."""
        if self.form is not None and self.tally.rows_before:
            yield from saved_values(self.form, self.files, list(self.segments))

    def check_same(self, saved: tuple[int, Mapping[str, Any]], item: Item, prompt: str) -> None:
        """Raise OutputExists if a saved row is not of this item."""
        number, row = saved
        if change := difference(row, item, prompt):
            assert self.state is not None
            raise input_changed(self.state.name, number, change)

    has_read = 0

    @contextmanager
    def computer(
        self, checkpoint: Checkpoint, adapter: Checkpoint | None, schema: Any, total: int | None
    ) -> Iterator[tuple[RowImages, Callable[[], Computer]]]:
        """Images that are decoded from now on, and what loads the model that answers them."""
        request, device = self.request, self.request.model.device
        if device == "auto":
            from pgcli.device.nvidia_driver import visible_gpus

            device = "cuda" if visible_gpus() else "cpu"
        spec = read_image_spec(checkpoint.folder)
        with RowImages(request, self.rows, spec, device, self.should_stop, total=total) as images:

            def make() -> Computer:
                engine = self.load(checkpoint, adapter)
                return Computer(request, self.rows, images, engine, schema, self.should_stop)

            yield images, make

    def load(self, checkpoint: Checkpoint, adapter: Checkpoint | None) -> Any:
        """Load the model into this process."""
        request = self.request
        with self.stage(f"loading {checkpoint.name}"):
            engine = load_engine(request, checkpoint, adapter, request.model.device)
        engine.starts_small = getattr(engine, "is_large", False)
        if self.state is not None and self.state.record is not None:
            self.load_limits(engine)
        self.engine = engine
        self.on_model(engine_info(request, engine))
        return engine

    def load_limits(self, engine: Any) -> None:
        """Begin with the batch sizes that an earlier run on the same device learned."""
        assert self.state is not None
        for other in others(self.state.store):
            limits = other.values.get("limits")
            if isinstance(limits, dict) and limits.get(engine.device):
                engine.batch_limits.load_state_dict(limits[engine.device])

    engine: Any = None

    def on_model(self, info: EngineInfo) -> None:
        """Note what is known of the loaded model. Raises OutputExists for another than before."""
        if self.summary.engine is not None:
            return
        self.summary.engine = info
        self.summary.loading_seconds = perf_counter() - self.began
        if self.request.model.device == "auto" and info.device == "cpu":
            self.warn_unused_gpu()
        if self.state is not None:
            self.record.check_model(info.model, self.state.name)

    def note_model(self, state: State) -> None:
        """Write what is known of the model, and of this command, into the record."""
        info = self.summary.engine
        if info is None:
            return
        record = self.record.resumed_by(
            replace(
                self.record,
                settings=run_settings(self.request),
                input=input_settings(self.request),
                model=info.model,
                versions=versions(),
                arguments=self.request.arguments,
            )
        )
        if record != self.record:
            self.record = record
            state.update(record)
        self.store_inventory(state)

    def warn_unused_gpu(self) -> None:
        """Say why the CPU is used on a machine with a GPU, unless the user has hidden the GPU."""
        from pgcli.device.nvidia_driver import find_gpu_problem

        if (problem := find_gpu_problem()) and not problem.is_intentional:
            self.say(f"the CPU is used, not the GPU: {problem.found}", hint=problem.remedy)

    def note_progress(self, process: Process) -> None:
        """Have the process's file say what this run has done so far."""
        tally = self.tally
        seconds = tally.seconds or (perf_counter() - self.answering_began)
        process.note(
            total=self.rows.total,
            shard=self.request.input.shard,
            rows=tally.rows,
            errors=tally.errors.total(),
            seconds=round(seconds, 3),
        )

    answering_began = 0.0

    def find_model(self) -> tuple[Checkpoint, Checkpoint | None]:
        """The files of the model, after what should be known before waiting for answers."""
        for text, hint in notices(self.request):
            self.say(text, hint)
        if "-" in self.request.sources and sys.stdin is not None and sys.stdin.isatty():
            self.say("reading paths from the terminal, one on each line; Ctrl-D ends them")
        return find_checkpoints(self.request, download_events(self._on_event))

    def slots(self, checkpoint: Checkpoint) -> list[EngineSlot]:
        """Where engines run; one in this process where rows are not known before they are read."""
        model, rows = self.request.model, self.rows.total
        if rows is None or self.request.question.embeds_texts:
            return [EngineSlot(1)]
        missing = sum(map(len, self.missing())) if self.state is not None else rows
        size = total_bytes(checkpoint.folder)
        if model.engines is None and missing < 1:
            return [EngineSlot(1)]
        return engine_slots(model.engines, model.device, size, rows=missing)

    # several processes

    def compute_shared(self, state: State, process: Process) -> None:
        """Compute the chunks that no other process of the output does."""
        shard = checks.shard_of(self.request)
        chunks = -(-(self.rows.total or 0) // self.record.chunk_rows)
        if shard is not None and not any(map(shard.has, range(chunks))):
            self.say("nothing to do: the shard has no row of the input")
            return
        checkpoint, adapter = self.find_model()
        self.begin(state)
        engine = self.load(checkpoint, adapter)
        self.note_model(state)
        worker = ChunkWorker(
            self.request, process, publishes=True, should_stop=self.should_stop, store=state.store
        )
        with self.answering(initial=self.tally.rows_before):
            for report in worker.work(engine, shard.has if shard else lambda number: True):
                self.on_report(report)
        assert self.form is not None  # other processes have added rows meanwhile
        errors = sum((segment.errors for segment in self.form.segments()), Counter[str]())
        self.tally.errors_before = errors - self.tally.errors

    def compute_stream_by_engines(
        self, slots: list[EngineSlot], save: Callable[[Answer], None]
    ) -> None:
        """Answer on several engines, and write the rows in their order as chunks are complete."""
        with TemporaryDirectory(prefix="pgcli-") as folder:
            output = replace(
                self.request.output, output=f"{folder}/rows.jsonl", format="auto", overwrite=False
            )
            inner = replace(self.request, output=output)
            self.state = open_state(inner, "jsonl")
            process = Process(self.state.store, "run")
            with process.registered():
                original, self.request = self.request, inner
                try:
                    self.open_output(self.state, process)
                    self.begin(self.state)
                    self.saves = save
                    with self.answering(initial=0):
                        run_engines(self, slots, inner, process)
                finally:
                    self.request, self.state = original, None

    saves: Callable[[Answer], None] | None = None

    def on_report(self, report: Report) -> None:
        """Count a chunk that a process has computed. Raises TooManyErrors."""
        self.tally.add(report.tally)
        for segment in self.new_segments(report):
            if segment not in report.segments:  # of a process that has died
                self.tally.rows += segment.rows
                self.tally.errors.update(segment.errors)
        self.summary.hits, self.summary.prompts = report.hits, report.prompts
        if report.limits and not self.summary.limits:
            self.say(f"memory ran out: {report.limits}; no row is lost")
        self.summary.limits = report.limits or self.summary.limits
        for segment in self.new_segments(report):
            self.known_files.add(segment.name)
            self.coverage.add(segment.first, segment.end)
        self.show_progress()
        self.budget.check(self.tally)

    def new_segments(self, report: Report) -> list[Segment]:
        """The files of a chunk that were not known before."""
        found = [*report.left, *report.segments]
        return [segment for segment in found if segment.name not in self.known_files]

    # what is common

    @contextmanager
    def answering(self, initial: int) -> Iterator[None]:
        """A block in which rows are computed, with progress shown and signals obeyed."""
        request, total = self.request, self.rows.total
        began = self.answering_began = perf_counter()
        self.shutdown = GracefulShutdown(
            lambda: self.say("finishing the rows in progress; press again to quit at once"),
            lambda: self.show_progress(now=True),
            pipes=request.output.output == "-",
        )
        if self.process is not None:
            self.note_progress(self.process)
            self.process.write()  # `pgcli status` knows the total from the beginning
        unit = "rows"
        with self.stage(request.question.task, total, initial, unit):
            self._on_event(events.Progress(initial, waits_for="reading the first images"))
            try:
                with self.shutdown:
                    yield
                    self.tally.seconds = perf_counter() - began
                    self.show_progress()
                    self.shutdown.raise_if_requested()
                    self.budget.check_share(self.tally)
            except BaseException:
                self.tally.seconds = perf_counter() - began
                raise

    shutdown: GracefulShutdown | None = None

    def should_stop(self) -> bool:
        """Whether a signal, or a pipe that is not read any more, ends the run."""
        return self.shutdown is not None and self.shutdown.should_stop()

    def count(self, number: int, row: Answer) -> None:
        """Count a saved row, pass it to the hooks, and show progress. Raises TooManyErrors."""
        self.tally.count(row)
        for hook in self.hooks:
            hook.on_row(row, self.items.of(number), is_saved=False)
        if perf_counter() - self._shown_at >= UPDATE_SECONDS:
            self.show_progress()
            self.show_limits()
        if row.error is not None:
            self.budget.check(self.tally)

    def show_progress(self, *, now: bool = False) -> None:
        """Show how many rows are saved."""
        self._shown_at = perf_counter()
        done = self.tally.rows_before + self.tally.rows
        if self.process is not None:
            self.note_progress(self.process)
        self._on_event(events.Progress(done, self.tally.errors.total(), is_asked=now))

    def show_limits(self) -> None:
        """Show once that batches became smaller because memory ran out."""
        limits = self.engine.batch_limits.summary() if self.engine is not None else ""
        if limits and not self.summary.limits:
            self.say(f"memory ran out: {limits}; no row is lost")
        self.summary.limits = limits

    def check_end_of_input(self) -> None:
        """Raise for an input that ended with fewer rows than are saved, or without any."""
        if self.has_more:
            checks.check_demo_limit(self.request, checks.DEMO_IMAGES + 1)
        is_over = not self.rows.is_addressable and self.request.input.limit is None
        if is_over and self.state is not None and self.has_read < self.tally.rows_before:
            raise OutputExists(
                f"{self.state.name} has {self.tally.rows_before:,} rows, and the input makes only "
                f"{self.has_read:,}",
                hint="name the whole input; another -o starts anew, --overwrite replaces it",
            )
        is_empty = not (self.tally.rows or self.tally.rows_before or self.has_read)
        if self.rows.inventory.total is None and is_empty:
            raise NoInputError(
                "nothing came on standard input",
                hint="pipe in a path or a JSON object on each line, or name a folder",
            )

    def report_interruption(self, problem: BaseException) -> None:
        """Show how many rows are saved, unless the reader of a pipe is gone."""
        is_pipe = isinstance(problem, Interrupted) and problem.signum == SIGPIPE
        if is_pipe or isinstance(problem, BrokenPipeError | NoInputError | OutputExists):
            return
        saved = self.tally.rows_before + self.tally.rows
        is_resumable = self.state is not None and self.saves is None
        with suppress(OutputFailed):
            self.say(interrupted_notice(self.request, saved, is_resumable=is_resumable))

    def finish(self) -> None:
        """Complete what is made beside rows, and fill the summary."""
        facts: list[tuple[str, str]] = []
        while self.hooks:
            facts.extend(self.hooks.pop(0).finish(complete=True))
        self.summary.hook_facts = facts
        if self.engine is not None:
            self.summary.hits = self.engine.image_stats.hits
            self.summary.prompts = self.engine.image_stats.prompts
            self.show_limits()
        self.summary.seconds = perf_counter() - self.began
        self.summary.exit_code = INCOMPLETE if self.tally.all_errors else 0

    def note_end(self, process: Process) -> Any:
        """What leaves in the process's file how the run ended and what it learned."""

        def note(kind: Any, problem: BaseException | None, trace: Any) -> None:
            if isinstance(problem, PgcliError) and self.summary.engine is None:
                with suppress(OutputFailed):
                    process.remove()  # it was refused: the output is as it was
                return
            errors = INCOMPLETE if self.tally.all_errors else 0
            if self.summary.input_rows is not None:
                self.note_progress(process)
            process.note(exit_code=errors if problem is None else exit_code(problem))
            if process.values["mode"] == "run":
                with suppress(PgcliError):  # the first problem is the one to report
                    process.remove_dead()
            if self.engine is not None:
                device, limits = self.engine.device, self.engine.batch_limits.state_dict()
                process.note(limits={device: limits})

        return note

    def close_output(self, kind: Any, problem: Any, trace: Any) -> None:
        """Flush and close the output."""
        if self.form is not None:
            with suppress(OutputFailed):
                self.form.close()

    def discard_if_empty(self, kind: Any, problem: Any, trace: Any) -> None:
        """Remove the state of a run that began here and saved nothing."""
        state, form = self.state, self.form
        if state is None or not self.is_new or state.replaced is not None or self.tally.rows:
            return
        with suppress(PgcliError):
            if form is None or not form.segments():
                state.discard()

    is_new = False

    def coverage_count(self) -> int:
        return self.tally.rows + self.tally.rows_before

    def coverage_end(self) -> int:
        """The first row that is not in the output."""
        return Coverage(one for one in self.segments if not one.name).end_of(0)

    def pass_on(self, number: int, row: Answer) -> None:
        """Pass a row that an engine process has computed to what is made beside rows."""
        if self.saves is not None:
            self.saves(row)
        for hook in self.hooks:
            hook.on_row(row, self.items.of(number), is_saved=False)


class DirectWriter:
    """Saves rows in order: in the output itself, or in an open file for each file of it."""

    def __init__(self, form: Form, files: OpenFiles, total: int | None):
        self._form, self._files, self._total = form, files, total
        self._sink: Any = None
        self._next = -1
        self._segment = Segment(0, 0)

    def save(self, number: int, line: bytes) -> None:
        """Save a row."""
        if isinstance(self._form, LinesForm):
            self._form.append(line)
            return
        if number != self._next or number % self._form.file_rows == 0 or self._sink is None:
            self.close()
            self._sink = self._files.begin(number)
            self._segment = Segment(number, 0, name=self._sink.name)
        self._sink.append(line)
        errors = self._segment.errors
        from pgcli.run.state.open_files import error_of

        if code := error_of(line):
            errors[code] += 1
        self._segment = replace(self._segment, rows=self._segment.rows + 1)
        self._next = number + 1

    def close(self) -> None:
        """Complete the open file; its rows are passed to the form."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None
            self._form.take(self._segment, self._total)


def texts_of(question: AnyQuestion) -> list[str]:
    """The texts that are the items, from the command and from its file. Raises UsageError."""
    assert isinstance(question, EmbeddingQuestion)
    more = question.texts_file
    return [*question.texts, *([] if more is None else text_lines(more, noun="text"))]


def output_stream(on_event: events.OnEvent) -> Any:
    """Standard output for rows: above the progress display, where the program has one there."""
    above = getattr(on_event, "output", None)
    stream = above() if above is not None else None
    return stream or sys.stdout.buffer


def download_events(on_event: events.OnEvent) -> Any:
    """What shows downloads, where the program has one."""
    return getattr(on_event, "downloads", lambda: None)()


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
    return (
        str(problem) if isinstance(problem, PgcliError) else f"{type(problem).__name__}: {problem}"
    )
