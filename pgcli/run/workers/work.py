"""The work of a run: slots for engines, and a queue of ranges of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pgcli.device.machine import processors, visible_gpus
from pgcli.errors import NoUsableDevice
from pgcli.run.input_rows import split_rows
from pgcli.run.progress import EngineInfo, Error

if TYPE_CHECKING:
    from pgcli.inputs.file_table import Stamp

#: After so many deaths, a range is answered image by image; an image that kills so many more
#: workers becomes a failed row.
MAX_DEATHS = 2
#: Near the end of a run, ranges shrink to so many rows, so that all workers end together.
MIN_ROWS = 8
#: Between the first unanswered row and the last one that is fed, each worker has at most so many
#: times its rows ahead. With 8, an engine idles where prompts have 28 different lengths.
EARLY_RANGES = 12
#: The most bytes of answered rows that wait for an earlier row.
MAX_EARLY_BYTES = 256 * 2**20
#: Images that are decoded ahead of a model on a GPU.
DECODED_AHEAD = 256


@dataclass(frozen=True, slots=True)
class Work:
    """Rows for a worker, after `deaths` of earlier workers in them.

    With `is_alone` they belong to one image, and the worker has no other rows meanwhile.
    """

    rows: range
    deaths: int = 0
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class WorkBegun:
    """The model has begun with a range."""

    rows: range


class RowsAnswered(NamedTuple):
    """Consecutive rows of a range, from row `first` on, as lines.

    `counts` come from the rows' tally, `errors` from the failed rows. `stamps` belong to the
    images, by index, that the model got since the last message. `limits` describes smaller batches
    after memory ran out. All are plain values, which are unpickled ten times as fast.
    """

    first: int
    lines: Sequence[bytes]
    counts: Sequence[float]
    errors: Sequence[Error]
    stamps: Mapping[int, Stamp | None]
    limits: str

    @property
    def rows(self) -> range:
        """The numbers of the rows."""
        return range(self.first, self.first + int(self.counts[0]))


EngineMessage: TypeAlias = "EngineInfo | WorkBegun | RowsAnswered"


@dataclass(slots=True)
class Chunk:
    """The range of a worker, from its first unanswered row on."""

    work: Work
    first: int
    has_begun: bool = False

    @property
    def rows(self) -> int:
        """The number of unanswered rows."""
        return self.work.rows.stop - self.first


class WorkQueue:
    """The unanswered rows of a run: free ones, and the ranges of each worker.

    `workers` share the rows in ranges of at most `size` rows; the `per_item` rows of an image stay
    together. With `is_fixed`, ranges always end at multiples of the size; otherwise they shrink
    near the end.

    Rows that are answered ahead of an unanswered one wait in memory. So ranges that begin too far
    after the first unanswered row (EARLY_RANGES) wait, and all but this row's do while
    `early_bytes`, which the owner counts, exceed MAX_EARLY_BYTES.
    """

    def __init__(
        self,
        works: Iterable[Work],
        *,
        workers: int,
        size: int,
        per_item: int = 1,
        is_fixed: bool = False,
    ):
        self.workers, self.per_item, self.size, self._is_fixed = workers, per_item, size, is_fixed
        self._free: list[tuple[int, int, Work]] = []  # a heap in order of rows
        self._assigned: dict[object, dict[int, Chunk]] = {}  # of workers, by their ends
        self._free_rows = self._assigned_rows = 0
        self.early_bytes = 0
        for work in works:
            self._add(work)

    def __bool__(self) -> bool:
        """Whether there are free rows."""
        return bool(self._free)

    @property
    def remaining(self) -> int:
        """The number of unanswered rows."""
        return self._free_rows + self._assigned_rows

    def feed(self, worker: object, ahead: int) -> Iterator[Work]:
        """Assign work to a worker, so that it has about `ahead` rows that its model has not begun.

        Near the end of a run it gets its share only. The number of its unanswered rows does not
        matter: rows come in order, and one long answer delays many finished ones.
        """
        while (work := self._next(worker, ahead)) is not None:
            self._assigned.setdefault(worker, {})[work.rows.stop] = Chunk(work, work.rows.start)
            self._assigned_rows += len(work.rows)
            yield work

    def begun(self, worker: object, rows: range) -> None:
        """Note that the model of a worker has begun a range."""
        self._assigned[worker][rows.stop].has_begun = True

    def begun_first(self, worker: object) -> None:
        """Note that the model of a worker has begun its first range, even without its message."""
        for chunk in [*self._assigned.get(worker, {}).values()][:1]:
            chunk.has_begun = True

    def answered(self, worker: object, rows: range) -> bool:
        """Note that a worker has answered rows, and return whether they complete a range.

        The rows of a range come in order.
        """
        for end, chunk in self._assigned[worker].items():
            if chunk.first == rows.start < rows.stop <= end:
                chunk.first = rows.stop
                self._assigned_rows -= len(rows)
                if rows.stop == end:
                    del self._assigned[worker][end]
                return rows.stop == end
        raise AssertionError(f"{rows} are not the next rows of a range of the worker")

    def take_back(self, worker: object) -> None:
        """Take back the unanswered rows of a worker that has ended."""
        for work in self._unanswered(worker):
            self._add(work)

    def died(self, worker: object) -> list[range]:
        """Take back the rows of a dead worker; return the rows of images that kill workers.

        The death counts for the ranges that its model had begun.
        """
        begun = {stop for stop, chunk in self._assigned.get(worker, {}).items() if chunk.has_begun}
        lost = []
        for work in self._unanswered(worker):
            work = replace(work, deaths=work.deaths + (work.rows.stop in begun))
            if work.deaths < MAX_DEATHS:
                self._add(work)
            elif work.is_alone:
                lost.append(work.rows)
            else:
                for image in split_rows(work.rows, self.per_item):
                    self._add(Work(image, is_alone=True))
        return lost

    def _unanswered(self, worker: object) -> list[Work]:
        """Unassign the unanswered rows of a worker, and return them."""
        works = []
        for stop, chunk in self._assigned.pop(worker, {}).items():
            self._assigned_rows -= chunk.rows
            if chunk.rows:
                works.append(replace(chunk.work, rows=range(chunk.first, stop)))
        return works

    def _add(self, work: Work) -> None:
        heappush(self._free, (work.rows.start, work.rows.stop, work))
        self._free_rows += len(work.rows)

    def _next(self, worker: object, ahead: int) -> Work | None:
        chunks = self._assigned.get(worker, {}).values()
        if not self._free or any(chunk.work.is_alone for chunk in chunks):
            return None
        waiting = sum(chunk.rows for chunk in chunks if not chunk.has_begun)
        share = -(-(self._free_rows + self._assigned_rows) // self.workers)
        is_fed = waiting >= ahead or sum(chunk.rows for chunk in chunks) >= share
        if chunks and (is_fed or self._free[0][-1].is_alone):
            return None
        if self._is_too_early(self._free[0][0], ahead):
            return None
        size = min(self.size, max(MIN_ROWS, self._free_rows // (2 * self.workers)))
        *_, work = heappop(self._free)
        self._free_rows -= len(work.rows)
        start, per_item = work.rows.start, self.per_item
        if self._is_fixed:
            size = self.size - start % self.size
        stop = max((start + size) // per_item * per_item, (start // per_item + 1) * per_item)
        if work.is_alone or stop >= work.rows.stop:
            return work
        self._add(replace(work, rows=range(stop, work.rows.stop)))
        return replace(work, rows=range(start, stop))

    def _is_too_early(self, row: int, ahead: int) -> bool:
        """Whether a free row must wait until earlier rows are answered."""
        firsts = (chunk.first for chunks in self._assigned.values() for chunk in chunks.values())
        first = min(firsts, default=row)
        span = EARLY_RANGES * ahead * self.workers
        return row - first >= span or (row > first and self.early_bytes > MAX_EARLY_BYTES)


def rows_ahead(queue: WorkQueue, device: str) -> int:
    """The number of rows that a worker holds ahead of its model, so that its batch never drains."""
    ahead = queue.size
    return ahead if device == "cpu" else ahead + DECODED_AHEAD * queue.per_item


#: On a CPU, models with smaller files are fastest with one thread for each engine.
SINGLE_THREAD_BYTES = 100 * 2**20
#: For fewer rows, engines take longer to start than they save.
MIN_ROWS_FOR_ENGINES = 500
MOST_ON_CPU = 8


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """Where an engine runs: on `threads` cores, or on the device of this name."""

    threads: int
    device: str = "cpu"


def engine_slots(
    engines: int | None, device: str, checkpoint_bytes: int, *, rows: int, cores: int | None = None
) -> list[EngineSlot]:
    """Where engines run: one on each GPU, or on a CPU each with its share of the cores.

    A model with small files has one thread for each engine, so that rows do not depend on their
    number. By default, runs of `MIN_ROWS_FOR_ENGINES` take all GPUs, or all cores for such a model.
    Raises NoUsableDevice for more engines than GPUs.
    """
    is_small = checkpoint_bytes < SINGLE_THREAD_BYTES
    cores = cores or max(1, int(processors()))
    gpus = visible_gpus() if device in ("auto", "cuda") else 0
    if gpus:
        if (engines or 0) > gpus:
            raise NoUsableDevice(
                f"<--engines {engines}> needs as many GPUs, and this machine has {gpus}",
                hint=f"<--engines {gpus}>, or auto",
            )
        count = engines or (gpus if rows >= MIN_ROWS_FOR_ENGINES else 1)
        return [EngineSlot(1, f"cuda:{index}") for index in range(count)]
    if device not in ("auto", "cpu"):
        return [EngineSlot(cores, device)]
    most = max(1, min(cores, MOST_ON_CPU, 2 * rows // MIN_ROWS_FOR_ENGINES))
    count = engines or (most if is_small and rows >= MIN_ROWS_FOR_ENGINES else 1)
    return [EngineSlot(1 if is_small else max(1, cores // count), "cpu")] * count
