"""Takes free chunks of a run and computes them: the loop of every process that shares an output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgcli.errors import NoUsableDevice
from pgcli.pipeline import task as tasks
from pgcli.pipeline.model import EngineInfo, engine_info
from pgcli.pipeline.output import join_output
from pgcli.pipeline.progress.tally import Tally
from pgcli.pipeline.rows import chunk, chunk_numbers
from pgcli.pipeline.state.claims import MAX_DEATHS, Claim, Claims
from pgcli.pipeline.state.open_files import Coverage, Segment
from pgcli.pipeline.state.processes import Process, living
from pgcli.pipeline.state.record import state_folder
from pgcli.pipeline.workers.answer import Answers
from pgcli.pipeline.workers.row_images import RowImages
from pgcli.pipeline.workers.slots import EngineSlot
from pgcli.records import DecodedImage, Fault
from pgcli.stores import open_folder

if TYPE_CHECKING:
    from pgcli.pipeline.output import RunOutput
    from pgcli.pipeline.request import RunRequest

CRASHED = Fault("worker_crashed", "The process of the model died of the image, twice.")
#: Engines that may end, one after the other, while no chunk is computed.
MAX_DEATHS_IN_A_ROW = 8


@dataclass
class Report:
    """What is counted of a computed chunk: the files with its rows, and one of its error rows.

    `remains` are the files with rows of it that killed processes left. `hits` and `prompts` are of
    the engine so far: images that several prompts shared.
    """

    number: int
    segments: list[Segment]
    remains: list[Segment] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    hits: int = 0
    prompts: int = 0
    limits: str = ""


@dataclass(frozen=True, slots=True)
class EngineTask:
    """What an engine in a process of its own computes: the chunks of a request's output.

    Its rows are put into the output by the process with the id `run`, which does so with those that
    are `saved`; without one, the engine saves its chunks in the output itself.
    """

    request: RunRequest
    slot: EngineSlot
    run: str | None = None
    saved: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineLoaded:
    """An engine has loaded its model; `process_id` is that of its process among the output's."""

    process_id: str
    info: EngineInfo


def compute(task: EngineTask, should_stop: Callable[[], bool]) -> Iterator[EngineLoaded | Report]:
    """Load the model and compute chunks until none is left; what is done is reported."""
    import torch

    request, slot = task.request, task.slot
    torch.set_num_threads(slot.threads)
    checkpoint, adapter = tasks.find_checkpoints(request)
    store = open_folder(state_folder(request.output.output))
    process = Process(store, "engine", {} if task.run is None else {"run": task.run})
    with (
        process.registered(),
        RowImages(request, checkpoint.folder, slot.device, should_stop, total=None) as images,
    ):
        output = join_output(request, store, process)
        images.on_image = output.note_image
        publishes = task.run is None
        worker = ChunkWorker(
            output, process, images, publishes=publishes, should_stop=should_stop, saved=task.saved
        )
        if not publishes:  # in an output that others share, it would cost requests
            worker.begin()
        engine = tasks.load_engine(request, checkpoint, adapter, slot.device)
        yield EngineLoaded(process.id, engine_info(request, engine))
        yield from worker.work(engine)
        process.remove()


class ChunkWorker:
    """Computes chunks of an output that is begun: its record and its inventory are there.

    Of the chunks with the `numbers`. With `publishes` they become files of the output's folder at
    once; otherwise they stay in open files for the process that started this one, which has the
    rows that are `saved`.
    """

    def __init__(
        self,
        output: RunOutput,
        process: Process,
        images: RowImages,
        *,
        publishes: bool,
        should_stop: Callable[[], bool],
        saved: Sequence[tuple[int, int]] = (),
        numbers: Callable[[int], bool] = lambda number: True,
    ):
        assert output.rows.total is not None
        self._output, self._process, self._images = output, process, images
        self._should_stop, self._total = should_stop, output.rows.total
        self._folder = output.form if publishes else None  # where chunks are published
        self._saved = Coverage([])
        for first, end in saved:
            self._saved.add(first, end)
        self._remains = output.files.segments(self._alive())
        pending = [*filter(numbers, chunk_numbers(output.record.chunk_rows, self._total))]
        complete = self._complete(pending)  # the last file may have only some of its rows
        pending = [n for n in pending if n not in complete and self._missing(n)]
        self._claims = Claims(output.state.store, process, pending, self._complete)
        self._first: Claim | None = None  # its images are decoded while the model is loaded

    def begin(self) -> None:
        """Have the images of a chunk decoded while the model is loaded, if one is free."""
        self._first = self._claims.next(self._should_stop, waits=False, is_loading=True)
        if self._first is not None:
            self._prepare(self._first)

    def work(self, engine: Any) -> Iterator[Report]:
        """Compute free chunks until none is left, or the run is to stop.

        A chunk is saved when its report comes. Raises OutputFailed, OutputExists, engine errors.
        """
        output, request, claims = self._output, self._output.request, self._claims
        output.name_model(engine_info(request, engine))
        answers = tasks.answer_function(request, engine, self._should_stop)
        if self._first is not None:
            self._first.is_loading = False
            claims.update(self._first)
        is_prepared, claim = self._first is not None, self._first or claims.next(self._should_stop)
        while claim is not None:
            ahead = claims.next(self._should_stop, waits=False) if claims.has_many else None
            if claim.deaths:
                self._remains = output.files.segments({*self._alive(), self._process.id})
            report = Report(claim.number, [], self._remains_in(claim.number))
            missing = self._missing(claim.number, report.remains)
            if not (claim.is_split or is_prepared):
                self._prepare(claim)
            is_prepared = ahead is not None and not claim.is_split
            if ahead is not None and is_prepared:
                self._prepare(ahead)
            is_whole = self._compute(claim, missing, answers, report)
            report.hits, report.prompts = engine.image_stats.hits, engine.image_stats.prompts
            report.limits = engine.batch_limits.summary()
            if not is_whole:
                for unfinished in filter(None, (claim, ahead)):
                    claims.release(unfinished.number)
                yield report
                return
            self._commit(claim, [*report.remains, *report.segments])
            yield report
            claim = ahead or claims.next(self._should_stop)

    def _prepare(self, claim: Claim) -> None:
        """Have the images of the chunk's missing rows decoded."""
        for rows in self._missing(claim.number, self._remains_in(claim.number)):
            self._images.prepare(self._output.rows.numbered(rows))

    def _compute(
        self, claim: Claim, missing: Iterable[range], answers: Answers, report: Report
    ) -> bool:
        """Compute the missing rows of a chunk, and save them in open files, which are reported.

        Returns whether that is all: not if the run is to stop. A chunk that killed processes is
        computed image by image, and rows of an image that killed processes are error rows.
        """
        output = self._output
        for rows in missing:
            file, tally = output.files.begin(rows.start), Tally()
            try:
                for piece in self._split(rows) if claim.is_split else [rows]:
                    if self._should_stop():
                        break
                    decoded = self._images.take(output.rows.item_count(piece), tally)
                    if claim.is_split:
                        decoded = self._image(claim, piece, tally)
                    for _, _, row in answers(decoded):
                        file.append(output.line(row))
                        tally.count(row)
            finally:
                file.close()
                report.tally.add(tally)
                if self._folder is None or tally.rows < len(rows):
                    output.files.put_held()
            report.segments.append(file.segment)
            if tally.rows < len(rows):
                return False
        return True

    def _split(self, rows: range) -> list[range]:
        """The rows of each image."""
        per_item = self._output.rows.per_item or 1
        starts = [rows.start, *range((rows.start // per_item + 1) * per_item, rows.stop, per_item)]
        stops = [*starts[1:], rows.stop]
        return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def _image(
        self, claim: Claim, rows: range, tally: Tally
    ) -> Iterator[tuple[int, DecodedImage] | None]:
        """The image of these rows, which are noted in the claim in case that the process dies.

        An image of which processes have died too often has a fault.
        """
        items = list(self._output.rows.numbered(rows))
        is_known = claim.row == rows.start
        if is_known and claim.row_deaths >= MAX_DEATHS:
            yield from ((row, DecodedImage(i, None, None, None, 0.0, CRASHED)) for row, i in items)
            return
        claim.row, claim.row_deaths = rows.start, claim.row_deaths if is_known else 0
        self._claims.update(claim)
        self._images.prepare(iter(items))
        yield from self._images.take(1, tally)

    def _commit(self, claim: Claim, segments: list[Segment]) -> None:
        """Publish a chunk, or leave it to the process that started this one."""
        if self._folder is None:
            claim.is_done = True
            self._claims.update(claim)
            return
        for segment in segments:
            self._folder.take(segment)
        self._folder.finish(self._total)

    def _rows_of(self, number: int) -> range:
        return chunk(number, self._output.record.chunk_rows, self._total)

    def _remains_in(self, number: int) -> list[Segment]:
        """The open files with rows of a chunk that killed processes left."""
        rows = self._rows_of(number)
        return [segment for segment in self._remains if segment.first in rows and segment.rows]

    def _missing(self, number: int, remains: Sequence[Segment] = ()) -> list[range]:
        """The rows of a chunk that are neither saved nor in these open files."""
        rows, coverage = self._rows_of(number), Coverage(remains)
        for first, end in self._saved.ranges:
            coverage.add(first, end)
        return list(coverage.missing(rows.start, rows.stop))

    def _complete(self, numbers: Collection[int]) -> set[int]:
        """Those of some chunks whose rows the output has all, as it is now."""
        if self._folder is None or not numbers:
            return set()
        for segment in self._folder.segments():
            self._saved.add(segment.first, segment.end)
        return {number for number in numbers if not self._missing(number)}

    def _alive(self) -> set[str]:
        """The other processes that run."""
        store = self._output.state.store
        return living(store, self._process.id)


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
