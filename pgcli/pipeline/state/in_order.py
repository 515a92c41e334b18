"""Delivery of rows in input order, from workers that answer in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from pgcli.pipeline.state.lines import ALL_ROWS, Coverage, Segment, without_overlap
from pgcli.pipeline.state.open_rows import OpenRows
from pgcli.stores import LocalStore

#: Takes lines, with the number of the first line.
Deliver = Callable[[int, Sequence[bytes]], object]
BLOCK_LINES = 1000  # delivered at once


class InOrder:
    """Delivers each row after all rows before it; until then the row waits in `early`.

    `next` is the next row to deliver. Rows in `saved` are skipped.
    """

    def __init__(
        self,
        early: OpenRows,
        deliver: Deliver,
        *,
        first: int = 0,
        saved: Coverage | None = None,
    ):
        self._early, self._deliver = early, deliver
        self._saved = saved or Coverage([])
        self._left: dict[int, tuple[Segment, int]] = {}
        #: Files to remove, as all their rows were delivered.
        self.delivered: list[str] = []
        self.next = self._saved.end_of(first)

    def begin(self, segments: Iterable[Segment]) -> None:
        """Use the open files of earlier commands."""
        segments = list(segments)
        for segment, begin, end in without_overlap(segments, self.next):
            self._left[begin] = segment, end
        waiting = {segment.name for segment, _ in self._left.values()}
        self.delivered += [segment.name for segment in segments if segment.name not in waiting]
        self._release()

    def save(self, number: int, line: bytes) -> None:
        """Deliver a row and the rows that waited for it, or let the row wait."""
        if number != self.next:
            self._early.append(number, line)
            return
        self._deliver(number, [line])
        self.next = number + 1
        self._release()

    def remove_delivered(self) -> None:
        """Remove the files of delivered rows."""
        names, self.delivered = self.delivered, []
        self._early.remove(names)

    def _release(self) -> None:
        """Deliver the waiting rows that come next."""
        while True:
            first = self.next = self._saved.end_of(self.next)
            segment, end = self._left.pop(first, (None, 0))
            if segment is None:
                if (segment := self._early.starting_at(first)) is None:
                    return
                end = segment.end
            lines = self._early.lines(segment, first, end)
            while block := [*islice(lines, BLOCK_LINES)]:
                self._deliver(self.next, block)
                self.next += len(block)
            self.delivered.append(segment.name)


@contextmanager
def in_order_of(ranges: Sequence[range], deliver: Deliver) -> Iterator[InOrder]:
    """A block in which the rows of ranges are delivered in order; early ones are in a temporary
    folder."""
    ends = [0, *(row for rows in ranges for row in (rows.start, rows.stop)), ALL_ROWS]
    gaps = zip(ends[::2], ends[1::2], strict=True)
    others = Coverage(Segment(first, end - first) for first, end in gaps)
    with TemporaryDirectory(prefix="pgcli-") as folder:
        early = OpenRows(LocalStore(Path(folder)))
        try:
            yield InOrder(early, deliver, saved=others)
        finally:
            early.close()
