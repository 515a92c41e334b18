"""Files of rows as lines: scan, read and append."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from pgcli.errors import OutputChanged, OutputExists
from pgcli.stores import LocalStore, Store
from pgcli.stores.writing import wrap_write_errors

#: More rows than any output has.
ALL_ROWS = 2**62
#: Seconds between flushes to disk; a power failure loses the rows since the last flush.
SYNC_SECONDS = 5.0
#: More complete lines after a damaged one are not truncated: that was no power failure.
MAX_CUT_LINES = 1000
#: The start and end of every row: compact JSON with a fixed order of columns.
BEGINNING, INDEX, ENDING = b'{"index":', b'{"index":%d,', b"}\n"
ERROR, FINISH = b'"error":', b'"finish":'
CUT = FINISH + b'"length"'


@dataclass
class OutputPart:
    """The saved rows of one file of the output: `rows` from row `first` on, and the failed ones.

    The last `in_log` of them are only in the part's log, until a file of the output has them too.
    The limit of tokens `cut` some of the answers.
    """

    first: int
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    in_log: int = 0
    log: Log | None = None
    cut: int = 0

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first + self.rows

    @property
    def log_first(self) -> int:
        """The first row that only the log has, or will have."""
        return self.end - self.in_log


def merge_ranges(ranges: Iterable[range]) -> list[range]:
    """The ranges, sorted by their starts, with those that touch or overlap as one."""
    result: list[range] = []
    for rows in ranges:
        if result and result[-1].stop >= rows.start:
            before = result.pop()
            rows = range(before.start, max(before.stop, rows.stop))
        result.append(rows)
    return result


@dataclass
class Lines:
    """The complete lines of a file: their number and bytes, failed rows by code, and cut answers.

    `foreign_row` is the number of the first line that no run and no power failure left there.
    """

    rows: int = 0
    size: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    foreign_row: int | None = None


def scan_lines(stream: BinaryIO, per_item: int | None = None) -> Lines:
    """The complete rows at the start of a file; its writer may have been killed.

    They end before the first line that is incomplete or damaged. If each item has `per_item` rows,
    the index of each row is compared with its place. Raises OSError.
    """
    lines, later_rows, is_cut = Lines(), 0, False
    for line in stream:
        is_cut = is_cut or not is_row(line)
        if not is_cut:
            if per_item is not None and not line.startswith(INDEX % (lines.rows // per_item)):
                lines.foreign_row = lines.rows
                break
            lines.rows += 1
            lines.size += len(line)
            lines.cut += is_cut_answer(line)
            if code := error_of(line):
                lines.errors[code] += 1
            continue
        later_rows += is_row(line)
        if later_rows > MAX_CUT_LINES or not (is_row(line) or is_damaged(line)):
            lines.foreign_row = lines.rows
            break
    return lines


def is_row(line: bytes) -> bool:
    """Whether a line is a complete row, undamaged by a kill or a power failure."""
    return line.startswith(BEGINNING) and line.endswith(ENDING) and b"\0" not in line


def is_damaged(line: bytes) -> bool:
    """Whether a kill or a power failure may have left a line: torn at its end, or with zeros."""
    is_torn = not line.endswith(b"\n") and BEGINNING.startswith(line[: len(BEGINNING)])
    return is_torn or b"\0" in line


def error_of(line: bytes) -> str:
    """The error code of a row, from its line; empty for an answered row."""
    at = line.find(ERROR) + len(ERROR)  # the first one: kept columns at the end may have more
    return "" if line.startswith(b"null", at) else line[at + 1 : line.find(b'"', at + 1)].decode()


def is_cut_answer(line: bytes) -> bool:
    """Whether the limit of tokens cut the answer of a row."""
    return line.startswith(CUT, line.find(FINISH))  # the first one: see `error_of`


def errors_in(lines: Iterable[bytes]) -> Counter[str]:
    """The number of failed rows, by code."""
    return Counter(filter(None, map(error_of, lines)))


class RowFile:
    """A file to which complete rows are appended. Raises OutputFailed."""

    def __init__(self, descriptor: int, path: Path, size: int = 0):
        self.name, self._path = str(path), path
        self._descriptor, self._size = descriptor, size
        self._synced_at = monotonic()

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
        try:
            is_there = os.path.samestat(status, self._path.stat())
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise changed(self.name, "removed or replaced")
        if status.st_size != self._size:
            raise changed(self.name, "truncated" if status.st_size < self._size else "extended")


class Log:
    """A file of consecutive rows as lines, to which rows are appended.

    Object stores cannot append: new rows wait in memory until `close` uploads the whole file.
    All methods raise OutputFailed.
    """

    def __init__(self, store: Store, name: str):
        self._store, self.name, self._size = store, name, 0
        self._file: RowFile | None = None
        self._buffer: list[bytes] | None = None
        #: The rows in memory that the store does not have.
        self.unsaved: list[bytes] = []

    def scan(self, per_item: int | None = None) -> Lines:
        """The complete rows of the file; later rows are written after these."""
        stream = self._stream()
        if stream is None:
            return Lines()
        with stream, wrap_write_errors(self.name):
            lines = scan_lines(stream, per_item)
        self._size = lines.size
        return lines

    def open(self) -> None:
        """Open the file for appending, truncated after its last complete row."""
        if not isinstance(self._store, LocalStore):
            if self._buffer is None:
                self._buffer = [(self._store.read(self.name) or b"")[: self._size]]
        elif self._file is None:
            descriptor, path = self._store.open_append(self.name), self._store.path / self.name
            with wrap_write_errors(path):
                os.ftruncate(descriptor, self._size)
            self._file = RowFile(descriptor, path, self._size)

    def append(self, line: bytes) -> None:
        """Save a row."""
        self.open()
        if self._file is not None:
            self._file.append(line)
        elif self._buffer is not None:
            self._buffer.append(line)
            self.unsaved.append(line)
        self._size += len(line)

    def lines(self, start: int, stop: int) -> Iterator[bytes]:
        """Some of the lines, counted from the first line of the file."""
        stream = self._stream()
        if stream is None:
            raise changed(self.name, "removed or replaced")
        with stream:
            yield from islice(stream, start, stop)

    def close(self, *, flushes: bool = True) -> None:
        """Close or upload the file; with `flushes`, all its rows are on disk then."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close(flushes=flushes)
        if self.unsaved and flushes:
            self._store.replace(self.name, b"".join(self._buffer or ()))
            self._buffer, self.unsaved = None, []

    def remove(self) -> None:
        """Remove the file; the output has its rows."""
        self.close(flushes=False)
        self._buffer, self.unsaved = None, []
        self._store.delete([self.name])

    def _stream(self) -> BinaryIO | None:
        return (
            BytesIO(b"".join(self._buffer)) if self._buffer else open_stream(self._store, self.name)
        )


def open_stream(store: Store, name: str) -> BinaryIO | None:
    """A file opened for reading, or downloaded from an object store; None if it is missing."""
    if isinstance(store, LocalStore):
        return store.open(name)
    data = store.read(name)
    return None if data is None else BytesIO(data)


class OutputEdited(OutputExists):
    """Another program changed saved rows."""


def edited(name: object, row: int) -> OutputEdited:
    """The error for a row that the run did not save."""
    return OutputEdited(
        f"{name} was changed: row {row + 1:,} is not the row that its run saved",
        hint="restore the file; another <-o> starts a new run; <--overwrite> replaces it",
    )


def changed(name: str, how: str) -> OutputChanged:
    """The error for a file that another program changed since the run opened it."""
    return OutputChanged(
        f"{name} was {how} by another program during the run",
        hint="the same command computes the missing rows; exclude the output from log rotation, "
        "and do not change it during a run",
    )
