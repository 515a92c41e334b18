"""Files of rows as lines: scan, read and append."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice, takewhile
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from pgcli.errors import OutputChanged
from pgcli.stores import LocalStore, Store
from pgcli.stores.writing import wrap_write_errors

#: More rows than any output has.
ALL_ROWS = 2**62
#: Seconds between flushes to disk; a power failure loses the rows since the last flush.
SYNC_SECONDS = 5.0
#: Seconds between two checks that a file still has its name.
LOOK_SECONDS = 0.2
#: One line in so many is compared with the input when a run resumes.
PROBE_EVERY = 4000
#: Bytes to read at once.
BLOCK_BYTES = 2**18
#: The start and end of every row: compact JSON with a fixed order of columns.
BEGINNING, ENDING = b'{"index":', b"}\n"
ERROR = b'"error":'


@dataclass(frozen=True)
class Segment:
    """Consecutive saved rows from row `first` on, in the output or in the open file `name`."""

    first: int
    rows: int
    errors: Counter[str] = field(default_factory=Counter)
    name: str = ""

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first + self.rows


def without_overlap(
    segments: Iterable[Segment], start: int = 0, stop: int = ALL_ROWS
) -> Iterator[tuple[Segment, int, int]]:
    """The (segment, start, stop) to read of overlapping segments, so that each row is read once."""
    row = start
    for segment in sorted(segments, key=lambda segment: (segment.first, -segment.rows)):
        begin, end = max(row, segment.first), min(segment.end, stop)
        if begin < end:
            yield segment, begin, end
            row = end


class Coverage:
    """The set of saved rows, from segments that may overlap."""

    def __init__(self, segments: Iterable[Segment]):
        self._ranges: list[tuple[int, int]] = []
        for segment in segments:
            self.add(segment.first, segment.end)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The (start, stop) of each range of saved rows."""
        return tuple(self._ranges)

    def add(self, first: int, end: int) -> None:
        """Add the rows from `first` up to, but not including, `end`."""
        if first >= end:
            return
        at = bisect_right(self._ranges, (first, end))
        is_next = at and self._ranges[at - 1][1] == first
        if is_next and (at == len(self._ranges) or self._ranges[at][0] > end):
            self._ranges[at - 1] = self._ranges[at - 1][0], end  # the usual case
            return
        while at and self._ranges[at - 1][1] >= first:
            at -= 1
            first, end = min(first, self._ranges[at][0]), max(end, self._ranges.pop(at)[1])
        while at < len(self._ranges) and self._ranges[at][0] <= end:
            end = max(end, self._ranges.pop(at)[1])
        self._ranges.insert(at, (first, end))

    def missing(self, start: int, stop: int) -> Iterator[range]:
        """The ranges of missing rows between `start` and `stop`, in order."""
        at = start
        for first, end in self._ranges:
            if first >= stop:
                break
            if first > at:
                yield range(at, first)
            at = max(at, end)
        if at < stop:
            yield range(at, stop)

    def count(self, stop: int | None = None) -> int:
        """The number of saved rows, or of saved rows before `stop`."""
        limit = ALL_ROWS if stop is None else stop
        return sum(max(0, min(end, limit) - first) for first, end in self._ranges)

    def end_of(self, row: int) -> int:
        """The first missing row from this one on."""
        at = bisect_right(self._ranges, (row, ALL_ROWS)) - 1
        return max(row, self._ranges[at][1]) if at >= 0 else row


@dataclass(frozen=True)
class Lines:
    """The complete lines of a file: their number and bytes, and failed rows by code.

    `probes` are sample lines by number, for comparison with the input. `cut_lines` are complete
    lines after an incomplete one. A foreign file does not start like a row, not even like a row
    that a power failure damaged.
    """

    rows: int = 0
    size: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    probes: Mapping[int, bytes] = field(default_factory=dict)
    cut_lines: int = 0
    is_foreign: bool = False


def scan_lines(stream: BinaryIO) -> Lines:
    """The complete rows at the start of a file; its writer may have been killed.

    They end before the first line that is incomplete or damaged. Raises OSError.
    """
    rows = size = cut_lines = 0
    is_cut = is_foreign = False
    errors: Counter[str] = Counter()
    probes: dict[int, bytes] = {}
    last = b""
    while lines := stream.readlines(BLOCK_BYTES):
        valid = [] if is_cut else whole_rows(lines)
        for at in range(-rows % PROBE_EVERY, len(valid), PROBE_EVERY):
            probes[rows + at] = valid[at]
        if len(valid) < len(lines):
            if not (is_cut or rows or valid):
                start = lines[0][: len(BEGINNING)]
                is_foreign = not BEGINNING.startswith(start) and b"\0" not in start
            is_cut = True
            cut_lines += sum(map(is_row, lines[len(valid) :]))
        if ERROR + b'"' in b"".join(valid):
            errors += errors_in(valid)
        rows, size, last = rows + len(valid), size + sum(map(len, valid)), (valid or [last])[-1]
    if rows:
        probes[rows - 1] = last
    return Lines(rows, size, errors, probes, cut_lines, is_foreign)


def whole_rows(lines: list[bytes]) -> list[bytes]:
    """The lines before the first incomplete row. The usual case needs one search of all bytes."""
    data = b"".join(lines)
    if is_row(data) and data.count(ENDING + BEGINNING) == len(lines) - 1:
        return lines
    return [*takewhile(is_row, lines)]


def is_row(line: bytes) -> bool:
    """Whether a line is a complete row, undamaged by a kill or a power failure."""
    return line.startswith(BEGINNING) and line.endswith(ENDING) and b"\0" not in line


def error_of(line: bytes) -> str:
    """The error code of a row, from its line; empty for an answered row."""
    at = line.find(ERROR) + len(ERROR)  # the first one: kept columns at the end may have more
    return "" if line.startswith(b"null", at) else line[at + 1 : line.find(b'"', at + 1)].decode()


def errors_in(lines: Iterable[bytes]) -> Counter[str]:
    """The number of failed rows, by code."""
    return Counter(filter(None, map(error_of, lines)))


def open_stream(store: Store, name: str) -> BinaryIO | None:
    """A file opened for reading, or downloaded from an object store; None if it is missing."""
    if isinstance(store, LocalStore):
        return store.open(name)
    data = store.read(name)
    return None if data is None else BytesIO(data)


class RowFile:
    """A file to which complete rows are appended. Raises OutputFailed."""

    def __init__(self, descriptor: int, path: Path, size: int = 0):
        self.name, self._path = str(path), path
        self._descriptor, self._size = descriptor, size
        self._synced_at = monotonic()
        self._looked_at = 0.0

    def append(self, lines: bytes) -> None:
        """Write lines; if that fails, the file is truncated to its earlier size."""
        remaining, at = memoryview(lines), self._size
        try:
            self._check_same()
            try:
                while remaining:
                    written = os.pwrite(self._descriptor, remaining, at)
                    remaining, at = remaining[written:], at + written
            except BaseException:
                os.ftruncate(self._descriptor, self._size)
                raise
        except OSError:
            with wrap_write_errors(self.name):
                raise
        self._size = at
        if monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Flush all lines to disk. A failed flush is final: the state of the disk is unknown."""
        with wrap_write_errors(self.name):
            os.fsync(self._descriptor)
            self._looked_at = 0.0
            self._check_same()
        self._synced_at = monotonic()

    def close(self, *, flushes: bool = True) -> None:
        """Close the file; it is not flushed if it is removed next."""
        try:
            if flushes:
                self.sync()
        finally:
            with wrap_write_errors(self.name):
                os.close(self._descriptor)

    def _check_same(self) -> None:
        """Raise OutputChanged if another program moved or truncated the file, or wrote into it.

        Rows after a truncation would follow a hole, and rows could overwrite foreign data.
        """
        status = os.fstat(self._descriptor)
        if monotonic() - self._looked_at >= LOOK_SECONDS:
            try:
                is_there = os.path.samestat(status, self._path.stat())
            except FileNotFoundError:
                is_there = False
            if not is_there:
                raise changed(self.name, "removed or replaced")
            self._looked_at = monotonic()
        if status.st_size != self._size:
            raise changed(self.name, "truncated" if status.st_size < self._size else "extended")


class LineReader:
    """Reads rows from files of lines in a folder, from one `name` or from those in segments."""

    def __init__(self, store: Store, name: str = ""):
        self._store, self._name = store, name

    def scan(self, name: str) -> Lines:
        """The complete rows in a file; none if it is missing. Raises OutputFailed."""
        stream = self._stream(name)
        if stream is None:
            return Lines()
        with stream, wrap_write_errors(name):
            return scan_lines(stream)

    def lines(self, segment: Segment, start: int, stop: int) -> Iterator[bytes]:
        """The lines of some of a segment's rows. Raises OutputFailed."""
        name = self._name or segment.name
        stream = self._stream(name)
        if stream is None:
            raise changed(name, "removed or replaced")
        with stream:
            yield from islice(stream, start - segment.first, stop - segment.first)

    def rows(self, segment: Segment, start: int) -> Iterator[Mapping[str, Any]]:
        """The rows of a segment from row `start` on."""
        return map(json.loads, self.lines(segment, start, segment.end))

    def error_rows(self, segment: Segment, start: int) -> Iterator[tuple[int, str]]:
        """The numbers and codes of failed rows of a segment, from row `start` on."""
        lines = self.lines(segment, start, segment.end)
        return (
            (number, code) for number, line in enumerate(lines, start) if (code := error_of(line))
        )

    def _stream(self, name: str) -> BinaryIO | None:
        return open_stream(self._store, name)


def changed(name: str, how: str) -> OutputChanged:
    """The error for a file that another program changed since the run opened it."""
    return OutputChanged(
        f"{name} was {how} by another program during the run",
        hint="the same command computes the missing rows; exclude the output from log rotation, "
        "and do not change it during a run",
    )
