"""Takes free chunks of a run and computes them: the loop of every process that shares an output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pgcli.errors import NoUsableDevice
from pgcli.inputs import Inventory
from pgcli.rows import RowSchema
from pgcli.run.checks import format_of, read_options
from pgcli.run.rows import RunRows, chunk
from pgcli.run.settings import loaded_model
from pgcli.run.state.folder import recorded_inputs
from pgcli.run.state.forms import FolderForm, FormContext
from pgcli.run.state.open_files import Coverage, OpenFiles, Segment
from pgcli.run.state.processes import Claim, Claims, Process, others
from pgcli.run.state.record import RUN, RunRecord, read_record, state_folder
from pgcli.run.tally import Tally
from pgcli.run.task import embedding_dim, find_checkpoints, load_engine, model_facts
from pgcli.run.workers.compute import Computer, RowImages
from pgcli.stores import Store, open_folder

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest


#: Engines that may end, one after the other, while no chunk is computed.
MAX_DEATHS_IN_A_ROW = 8


@dataclass(frozen=True)
class EngineInfo:
    """What is known of a loaded engine."""

    label: str
    device: str
    dtype: str
    batch_size: int
    model: dict[str, Any]
    facts: tuple[tuple[str, str], ...] = ()


@dataclass
class Report:
    """What is counted of a computed chunk: the files with its rows, and one of its error rows.

    `left` are the files with rows of it that processes left which have died. `hits` and `prompts`
    are of the engine so far: images that several prompts shared.
    """

    number: int
    segments: list[Segment]
    left: list[Segment] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    hits: int = 0
    prompts: int = 0
    limits: str = ""
    limits_state: dict[str, Any] = field(default_factory=dict)


def row_schema(request: RunRequest, keep: Sequence[str], *, exact: bool) -> RowSchema:
    """The columns of the rows. Raises UsageError for a kept column of a name that is taken.

    With `exact`, rows are lines from which Parquet is made: embeddings as their bytes.
    """
    question = request.question
    return RowSchema(
        timing=not request.output.no_timing,
        extras=question.extra_columns,
        base=question.columns,
        float16=question.float16,
        keep=tuple(keep),
        exact=exact,
    )


def engine_info(request: RunRequest, engine: Any) -> EngineInfo:
    """What the summary and the record of a run need of its loaded engine."""
    dim = embedding_dim(request, engine)
    model = loaded_model(request, engine.label, engine.dtype, dim)
    return EngineInfo(
        engine.label,
        engine.device,
        engine.dtype,
        engine.batch_size,
        model,
        tuple(model_facts(request, engine)),
    )


class ChunkWorker:
    """Computes chunks of an output that is begun: its record and its inventory are there.

    With `publishes` its chunks become files of the output's folder at once; otherwise they stay in
    open files for the process that started this one. Nothing but the request is needed.
    """

    def __init__(
        self,
        request: RunRequest,
        process: Process,
        *,
        publishes: bool,
        should_stop: Callable[[], bool],
        store: Store | None = None,
        saved: Sequence[tuple[int, int]] = (),
    ):
        self.request, self.process, self._should_stop = request, process, should_stop
        self.store = store or open_folder(state_folder(request.output.output))
        record = read_record(self.store)
        assert record is not None, "the run has not begun"
        self.record = record
        inventory = Inventory.load(
            recorded_inputs(self.store), request.sources, read_options(request)
        )
        self.rows = RunRows(inventory, request.question, request.input.limit)
        total = self.rows.total
        assert total is not None
        self.total = total
        self._saved = Coverage([])
        for first, end in saved:
            self._saved.add(first, end)
        self.files = OpenFiles(self.store, process.id)
        is_lines = format_of(request) == "jsonl"
        keep = inventory.kept
        self.schema = row_schema(request, keep, exact=not is_lines)
        self.line_schema = self.schema if is_lines else replace(self.schema, keep=())
        self.form: FolderForm | None = None
        if publishes:
            context = FormContext(lambda: self.record, self.schema, self.rows.kept, self.files)
            folder = open_folder(request.output.output, create=True)
            self.form = FolderForm(folder, context, record.file_rows)

    def work(
        self,
        engine: Any,
        numbers: Callable[[int], bool] = lambda number: True,
    ) -> Iterator[Report]:
        """Compute free chunks with these numbers until none is left, or the run is to stop.

        A chunk is saved when its report comes. Raises OutputFailed, OutputExists, and what the
        engine raises.
        """
        self._note_model(engine_info(self.request, engine))
        alive = {other.id for other in others(self.store, self.process.id) if other.is_alive}
        left = self.files.segments(alive)
        if self.form is not None:
            for segment in self.form.segments():  # the last file may have only some of its rows
                self._saved.add(segment.first, segment.end)
        size, total = self.record.chunk_rows, self.total
        pending = [
            number
            for number in filter(numbers, range(-(-total // size)))
            if (not self._is_there(number) if self.form else self._missing(number))
        ]
        claims = Claims(self.store, self.process, pending, self._is_there)
        with RowImages(
            self.request,
            self.rows,
            engine.spec,
            engine.device,
            self._should_stop,
            total=None,
        ) as images:
            computer = Computer(
                self.request, self.rows, images, engine, self.line_schema, self._should_stop
            )
            yield from self._loop(computer, claims, left, engine)

    def _note_model(self, info: EngineInfo) -> None:
        """Have the record name the model before there are rows of it."""
        record = read_record(self.store) or self.record
        self.record = replace(record, model={**info.model, **record.model})
        if not record.model:
            self.store.replace(RUN, self.record.to_bytes())

    def _loop(
        self,
        computer: Computer,
        claims: Claims,
        left: list[Segment],
        engine: Any,
    ) -> Iterator[Report]:
        claim = claims.next(self._should_stop)
        while claim is not None:
            ahead = claims.next(self._should_stop, waits=False) if claims.has_many else None
            if claim.deaths:
                alive = {o.id for o in others(self.store, self.process.id) if o.is_alive}
                left = self.files.segments({*alive, self.process.id})
            rows = chunk(claim.number, self.record.chunk_rows, self.total)
            kept = [one for one in left if rows.start <= one.first < rows.stop and one.rows]
            missing = self._missing(claim.number, kept)
            if not claim.is_split:
                for some in missing:
                    computer.prepare(some)
                if ahead is not None and not any(self._left_in(ahead, left)):
                    computer.prepare(chunk(ahead.number, self.record.chunk_rows, self.total))
            report = Report(claim.number, [], kept)
            report.segments, is_whole = computer.compute(
                claim, missing, self.files, claims.update, report.tally
            )
            report.hits, report.prompts = engine.image_stats.hits, engine.image_stats.prompts
            report.limits = engine.batch_limits.summary()
            report.limits_state = engine.batch_limits.state_dict()
            if not is_whole:
                claims.release(claim.number)
                if ahead is not None:
                    claims.release(ahead.number)
                yield report
                return
            self._complete(claim, claims, [*kept, *report.segments])
            yield report
            claim = ahead or claims.next(self._should_stop)

    def _complete(self, claim: Claim, claims: Claims, segments: list[Segment]) -> None:
        """Publish a chunk, or leave it to the process that started this one."""
        if self.form is None:
            claim.is_done = True
            claims.update(claim)
            return
        for segment in segments:
            self.form.take(segment, self.total)
        claims.release(claim.number)

    def _left_in(self, claim: Claim, left: list[Segment]) -> list[Segment]:
        rows = chunk(claim.number, self.record.chunk_rows, self.total)
        return [one for one in left if rows.start <= one.first < rows.stop]

    def _missing(self, number: int, left: Sequence[Segment] = ()) -> list[range]:
        """The rows of a chunk that are neither saved nor in files that were left."""
        rows = chunk(number, self.record.chunk_rows, self.total)
        coverage = Coverage(left)
        for first, end in self._saved.ranges:
            coverage.add(first, end)
        return list(coverage.missing(rows.start, rows.stop))

    def _is_there(self, number: int) -> bool:
        return self.form is not None and self.form.is_complete(number, self.total)


def load_for(request: RunRequest, device: str, *, starts_small: bool) -> Any:
    """The model of a run, loaded. Raises the errors of the model and of the device."""
    checkpoint, adapter = find_checkpoints(request)
    engine = load_engine(request, checkpoint, adapter, device)
    engine.starts_small = starts_small and getattr(engine, "is_large", False)
    return engine


class Deaths:
    """Engines that end one after the other while no chunk is computed."""

    def __init__(self, hint: str):
        self._hint, self._count = hint, 0

    def reset(self) -> None:
        """Note that a chunk was computed."""
        self._count = 0

    def add(self, how: str, engines: int) -> None:
        """Note that one of so many engines has ended. Raises NoUsableDevice for too many."""
        self._count += 1
        if self._count > max(MAX_DEATHS_IN_A_ROW, 2 * engines):
            raise NoUsableDevice(
                f"{self._count} engines ended in a row, the last one: {how}", hint=self._hint
            )


def check_equal(record: RunRecord, info: EngineInfo) -> None:
    """Raise NoUsableDevice for an engine whose model is not that of the run."""
    for name in ("model", "dtype", "checkpoint"):
        known, found = record.model.get(name), info.model.get(name)
        if known is not None and found is not None and known != found:
            raise NoUsableDevice(
                f"an engine has {name} {found}, and the first one {known}",
                hint="--dtype and --revision make all engines equal",
            )
