"""The rows that are saved: those in the output itself, and those in files of lines beside it."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic

from pgcli.errors import OutputExists, OutputFailed
from pgcli.output.reader import OPEN as FOLDER
from pgcli.output.reader import OPEN_FILE
from pgcli.stores import LocalStore, Store
from pgcli.stores.writing import wrap_write_errors

OPEN = f"{FOLDER}/"
NAME = re.compile(OPEN + OPEN_FILE.pattern)
#: Seconds between flushes to disk; a power loss costs the rows of the last ones.
SYNC_SECONDS = 5.0
READ_BYTES = 4 * 2**20
#: More whole lines than a power loss can cost are not cut off: something else damaged the file.
MAX_CUT_LINES = 1000
#: Every row of ours begins and ends so: compact JSON with the columns in one order.
BEGINNING, ENDING = b'{"index":', b"}\n"
ERROR = b'"error":'


@dataclass(frozen=True)
class Segment:
    """Consecutive saved rows from row `first` on, in the output or in the open file of a `name`."""

    first: int
    rows: int
    errors: Counter[str] = field(default_factory=Counter)
    name: str = ""

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first + self.rows


@dataclass(frozen=True)
class Lines:
    """The whole lines of a file: how many, their bytes, and error rows by code.

    `probes` are some of the lines by their numbers, with which the input is compared.
    """

    rows: int = 0
    size: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    probes: dict[int, bytes] = field(default_factory=dict)
    cut_lines: int = 0


#: One of so many lines is compared with the input when a run resumes.
PROBE_EVERY = 4096


def scan_lines(descriptor: int) -> Lines:
    """The whole rows at the start of an open file, of a process that may have been killed.

    A line that is not whole, or holds what a power loss left, ends them; lines after it are counted
    as `cut_lines`. Raises OSError.
    """
    rows = end = cut = 0
    errors: Counter[str] = Counter()
    probes: dict[int, bytes] = {}
    last = b""
    with os.fdopen(os.dup(descriptor), "rb", buffering=READ_BYTES) as stream:
        stream.seek(0)
        for line in stream:
            if cut or not is_row(line):
                cut += is_row(line)
                cut = max(cut, 1)
                continue
            if code := error_of(line):
                errors[code] += 1
            if rows % PROBE_EVERY == 0:
                probes[rows] = line
            rows, end, last = rows + 1, end + len(line), line
    if rows:
        probes[rows - 1] = last
    return Lines(rows, end, errors, probes, max(0, cut - 1))


def is_row(line: bytes) -> bool:
    """Whether a line is a whole row, as far as a kill or a power loss may have damaged it."""
    return line.startswith(BEGINNING) and line.endswith(ENDING) and b"\0" not in line


def error_of(line: bytes) -> str:
    """The error code of a row, from its line; empty for an answered row."""
    at = line.find(ERROR) + len(ERROR)  # the first one: kept values, which come last, may have more
    return "" if line.startswith(b"null", at) else line[at + 1 : line.find(b'"', at + 1)].decode()


class RowFile:
    """A file to which rows are appended, each completely or not at all. Raises OutputFailed."""

    def __init__(self, descriptor: int, name: str, size: int = 0):
        self.name, self._descriptor, self._size = name, descriptor, size
        self._synced_at = monotonic()

    def append(self, line: bytes) -> None:
        """Write a line; on a full disk nothing of it remains."""
        rest, at = memoryview(line), self._size
        with wrap_write_errors(self.name):
            try:
                while rest:
                    written = os.pwrite(self._descriptor, rest, at)
                    rest, at = rest[written:], at + written
            except BaseException:
                os.ftruncate(self._descriptor, self._size)
                raise
        self._size = at
        if monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Flush all lines to disk. A failed flush is final: what is on disk is unknown."""
        with wrap_write_errors(self.name):
            os.fsync(self._descriptor)
            is_gone = os.fstat(self._descriptor).st_nlink == 0
        if is_gone:
            raise OutputFailed(
                f"{self.name} was removed or replaced during the run",
                hint="run the same command again, and leave the output alone while it runs",
            )
        self._synced_at = monotonic()

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.sync()
        finally:
            with wrap_write_errors(self.name):
                os.close(self._descriptor)


class OpenFiles:
    """The files of lines in a state folder: `open/FIRST-ID.jsonl`, from row FIRST on.

    In an object store, which has no files to append to, their rows are held in memory and put when
    the file is closed.
    """

    def __init__(self, store: Store, process_id: str):
        self._store, self._id = store, process_id

    def segments(self, alive: Collection[str] = ()) -> list[Segment]:
        """The rows in files that processes left, those that are `alive` apart, in order.

        Raises OutputFailed and OutputExists.
        """
        found = []
        for name in self.names(alive):
            lines, match = self.scan(name), NAME.fullmatch(name)
            assert match is not None
            found.append(Segment(int(match[1]), lines.rows, lines.errors, name))
        return sorted(found, key=lambda segment: (segment.first, -segment.rows))

    def names(self, alive: Collection[str] = ()) -> list[str]:
        """The files that processes left, those that are `alive` apart."""
        names = [entry.name for entry in self._store.list(OPEN)]
        return [name for name in names if (m := NAME.fullmatch(name)) and m[2] not in alive]

    def scan(self, name: str) -> Lines:
        """The whole rows in a file."""
        if not isinstance(self._store, LocalStore):
            lines = (self._store.read(name) or b"").splitlines(keepends=True)
            return Lines(len(lines), errors=Counter(filter(None, map(error_of, lines))))
        file = self._store.open(name)
        if file is None:  # its rows came to the output meanwhile
            return Lines()
        with file, wrap_write_errors(name):
            return scan_lines(file.fileno())

    def lines(self, segment: Segment, start: int, stop: int) -> Iterator[bytes]:
        """The lines of some of a segment's rows."""
        if isinstance(self._store, LocalStore):
            stream = self._store.open(segment.name)
            if stream is None:
                raise OutputFailed(
                    f"{segment.name} was removed during the run",
                    hint="run the same command again, and leave the output alone while it runs",
                )
            with stream:
                for row, line in zip(range(segment.first, stop), stream, strict=False):
                    if row >= start:
                        yield line
            return
        found = (self._store.read(segment.name) or b"").splitlines(keepends=True)
        yield from found[start - segment.first : stop - segment.first]

    def begin(self, first: int) -> RowFile | HeldRows:
        """A new file for rows from `first` on."""
        name = f"{OPEN}{first:012}-{self._id}.jsonl"
        if isinstance(self._store, LocalStore):
            self._store.delete([name])  # of this process, which answers the rows again
            return RowFile(self._store.open_append(name), name)
        return HeldRows(self._store, name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files whose rows are in the output."""
        self._store.delete(names)


class HeldRows:
    """Rows for an object store, put as one object when it is closed."""

    def __init__(self, store: Store, name: str):
        self.name, self._store = name, store
        self._lines: list[bytes] = []

    def append(self, line: bytes) -> None:
        self._lines.append(line)

    def close(self) -> None:
        self._store.replace(self.name, b"".join(self._lines))


class Coverage:
    """Which rows are saved, from segments that may overlap."""

    def __init__(self, segments: Iterable[Segment]):
        self._ranges: list[tuple[int, int]] = []
        for segment in segments:
            self.add(segment.first, segment.end)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The first row of each range of saved rows, and the one after its last."""
        return tuple(self._ranges)

    def add(self, first: int, end: int) -> None:
        """Note that the rows from `first` to before `end` are saved."""
        if first >= end:
            return
        at = bisect_right(self._ranges, (first, end))
        while at and self._ranges[at - 1][1] >= first:
            at -= 1
            first, end = min(first, self._ranges[at][0]), max(end, self._ranges.pop(at)[1])
        while at < len(self._ranges) and self._ranges[at][0] <= end:
            end = max(end, self._ranges.pop(at)[1])
        self._ranges.insert(at, (first, end))

    def missing(self, start: int, stop: int) -> Iterator[range]:
        """The rows between these that are not saved, as ranges in order."""
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
        """The number of saved rows, or of those before `stop`."""
        return sum(
            max(0, (end if stop is None else min(end, stop)) - first) for first, end in self._ranges
        )

    def end_of(self, row: int) -> int:
        """The first row from this one on that is not saved."""
        for first, end in self._ranges:
            if first <= row < end:
                return end
        return row


def check_cut(name: str, lines: Lines) -> None:
    """Raise OutputExists for a file that is damaged before rows that are whole."""
    if lines.cut_lines > MAX_CUT_LINES:
        raise OutputExists(
            f"{name} is damaged at row {lines.rows + 1:,}, with {lines.cut_lines:,} rows after it",
            hint="restore or remove its line; another -o starts anew; --overwrite replaces it",
        )
