"""The work of a run: ranges of rows that workers are fed ahead, and others get after a death."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from pgcli.pipeline.rows import split_rows

#: Rows of so many dead workers are answered image by image; an image that ends so many more workers
#: becomes an error row.
MAX_DEATHS = 2
#: Near the end of a run, ranges are smaller, down to so many rows, so that workers end together.
MIN_ROWS = 8
#: Images that are decoded ahead of a model on a GPU.
DECODED_AHEAD = 256


@dataclass(frozen=True, slots=True)
class Work:
    """Rows for a worker, of which `deaths` workers have died.

    `is_alone`: the rows of an image that a worker answers while it has nothing else. `is_part`: all
    rows that a file of the output lacks, which the worker may write itself.
    """

    rows: range
    deaths: int = 0
    is_alone: bool = False
    is_part: bool = False


@dataclass(slots=True)
class Chunk:
    """The range of a worker: its first row without an answer, and whether the model has begun."""

    work: Work
    first: int
    has_begun: bool = False

    @property
    def rows(self) -> int:
        """The number of rows that are not answered."""
        return self.work.rows.stop - self.first


class WorkQueue:
    """The rows that are not answered: those that no worker has, and those of each worker.

    `workers` is the number of workers that share the rows, `size` the largest range that is given
    at once, and `per_item` the rows of an image, which stay together. With `is_fixed` ranges end at
    multiples of the size, whatever the workers do; else they are smaller near the end.
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
        self._alone: deque[Work] = deque()
        self._hunter: object = None  # the worker that answers images alone
        self._assigned: dict[object, dict[int, Chunk]] = {}  # of workers, by their ends
        self._free_rows = self._assigned_rows = 0
        for work in works:
            self._add(work)

    def __bool__(self) -> bool:
        """Whether there are rows that no worker has."""
        return bool(self._free or self._alone)

    @property
    def remaining(self) -> int:
        """The number of rows that are not answered."""
        alone = sum(len(work.rows) for work in self._alone)
        return self._free_rows + self._assigned_rows + alone

    def feed(self, worker: object, ahead: int) -> Iterator[Work]:
        """What a worker gets now, so that it has about `ahead` rows that its model has not begun.

        Near the end of a run it gets its share only. What it has not answered says little: rows
        come in order, and one long answer holds back many that are done.
        """
        while (work := self._next(worker, ahead)) is not None:
            self._assigned.setdefault(worker, {})[work.rows.stop] = Chunk(work, work.rows.start)
            self._assigned_rows += len(work.rows)
            yield work

    def begun(self, worker: object, rows: range) -> None:
        """Note that the model of a worker has the first image of a range."""
        self._assigned[worker][rows.stop].has_begun = True

    def begun_first(self, worker: object) -> None:
        """Note that the model of a worker had begun its first range, whatever it has said."""
        for chunk in [*self._assigned.get(worker, {}).values()][:1]:
            chunk.has_begun = True

    def answered(self, worker: object, rows: range) -> bool:
        """Note that a worker has answered rows. Those of a range come in order.

        Returns whether they are the last ones of a range.
        """
        for end, chunk in self._assigned[worker].items():
            if chunk.first == rows.start < rows.stop <= end:
                chunk.first = rows.stop
                self._assigned_rows -= len(rows)
                if rows.stop == end:
                    del self._assigned[worker][end]
                    self._end_hunt(worker)
                return rows.stop == end
        raise AssertionError(f"{rows} are not the next rows of a range of the worker")

    def take_back(self, worker: object) -> None:
        """Take back what a worker that has ended leaves."""
        for work in self._left(worker):
            self._add(work)

    def died(self, worker: object) -> list[range]:
        """Take back what a worker that died leaves; it died of the ranges that its model had begun.

        Returns the rows of images that too many workers have died of.
        """
        begun = {stop for stop, chunk in self._assigned.get(worker, {}).items() if chunk.has_begun}
        lost = []
        for work in self._left(worker):
            work = replace(work, deaths=work.deaths + (work.rows.stop in begun))
            if work.deaths < MAX_DEATHS:
                self._add(work)
            elif work.is_alone:
                lost.append(work.rows)
            else:
                images = split_rows(work.rows, self.per_item)
                self._alone.extend(Work(rows, is_alone=True) for rows in images)
        return lost

    def _left(self, worker: object) -> list[Work]:
        """The rows that a worker has not answered, which it loses."""
        self._end_hunt(worker)
        works = []
        for stop, chunk in self._assigned.pop(worker, {}).items():
            self._assigned_rows -= chunk.rows
            if chunk.rows:
                is_part = chunk.work.is_part and chunk.first == chunk.work.rows.start
                works.append(replace(chunk.work, rows=range(chunk.first, stop), is_part=is_part))
        return works

    def _add(self, work: Work) -> None:
        if work.is_alone:
            self._alone.appendleft(work)
            return
        heappush(self._free, (work.rows.start, work.rows.stop, work))
        self._free_rows += len(work.rows)

    def _next(self, worker: object, ahead: int) -> Work | None:
        chunks = self._assigned.get(worker, {}).values()
        if any(chunk.work.is_alone for chunk in chunks):
            return None
        if self._alone and self._hunter in (None, worker):
            self._hunter = worker
            return None if chunks else self._alone.popleft()
        waiting = sum(chunk.rows for chunk in chunks if not chunk.has_begun)
        share = -(-(self._free_rows + self._assigned_rows) // self.workers)
        is_fed = waiting >= ahead or sum(chunk.rows for chunk in chunks) >= share
        if not self._free or (chunks and is_fed):
            return None
        size = min(self.size, max(MIN_ROWS, self._free_rows // (2 * self.workers)))
        *_, work = heappop(self._free)
        self._free_rows -= len(work.rows)
        start, per_item = work.rows.start, self.per_item
        if self._is_fixed:
            size = self.size - start % self.size
        stop = max((start + size) // per_item * per_item, (start // per_item + 1) * per_item)
        if work.is_part or stop >= work.rows.stop:
            return work
        self._add(replace(work, rows=range(stop, work.rows.stop)))
        return replace(work, rows=range(start, stop))

    def _end_hunt(self, worker: object) -> None:
        """Let any worker answer the next image that is answered alone."""
        if self._hunter == worker:
            self._hunter = None


def rows_ahead(queue: WorkQueue, device: str) -> int:
    """How many rows a worker has that its model has not begun, so that its batch never drains."""
    ahead = queue.size
    return ahead if device == "cpu" else ahead + DECODED_AHEAD * queue.per_item
