"""The spool of early rows: files of lines in a state folder, `open/FIRST.jsonl`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import BinaryIO

from pgcli.output.reader import OPEN, OPEN_FILE
from pgcli.pipeline.state.lines import ALL_ROWS, LineReader, RowFile, Segment, error_of
from pgcli.stores import LocalStore, Store

#: The most files open for appending at the same time.
MAX_OPEN_FILES = 64


class OpenRows(LineReader):
    """Files of consecutive rows in a folder of the state, each named by its first row.

    A file ends before each multiple of `file_rows`. Object stores cannot append: their rows are
    buffered in memory, and `put_buffered` uploads the rows that the output does not have.
    """

    def __init__(self, store: Store, folder: str = OPEN, *, file_rows: int = ALL_ROWS):
        super().__init__(store)
        self._folder, self._file_rows = f"{folder}/", file_rows
        self._files: dict[int, NewFile] = {}  # by their first rows
        self._expecting: dict[int, NewFile] = {}  # by the row that comes next, those that are open

    def names(self) -> list[str]:
        """The names of all files."""
        names = (entry.name for entry in self._store.list(self._folder))
        return [name for name in names if OPEN_FILE.fullmatch(name.removeprefix(self._folder))]

    def segments(self) -> list[Segment]:
        """The rows in all files. Raises OutputFailed and OutputExists.

        Files without a complete row are skipped: a new file may take their names.
        """
        scans = ((name, self.scan(name)) for name in self.names())
        return [Segment(self._first_row(n), s.rows, s.errors, n) for n, s in scans if s.rows]

    def append(self, number: int, line: bytes) -> None:
        """Save a row. Raises OutputFailed."""
        file = self._expecting.pop(number, None)
        if file is None or number % self._file_rows == 0:
            if file is not None:
                file.close()
            file = self._begin(number)
        file.append(line)
        self._expecting[number + 1] = file

    def starting_at(self, first: int) -> Segment | None:
        """The rows of the file that this command began with this row."""
        file = self._files.get(first)
        return None if file is None else file.segment

    def within(self, start: int, stop: int) -> list[Segment]:
        """The rows of files that this command began between `start` and `stop`."""
        return [file.segment for first, file in self._files.items() if start <= first < stop]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; the output has their rows."""
        put = []
        for name in names:
            file = self._files.get(first := self._first_row(name))
            if file is None or file.name != name:
                put.append(name)
                continue
            self._expecting.pop(file.end, None)
            del self._files[first]
            file.close(flushes=False)
            if file.buffered is None:
                put.append(name)
        if put:
            self._store.delete(put)

    def close(self) -> None:
        """Close all open files. Raises OutputFailed."""
        while self._expecting:
            self._expecting.popitem()[1].close()

    def put_buffered(self) -> None:
        """Upload the buffered rows to the object store. Raises OutputFailed."""
        for file in self._buffered():
            self._store.replace(file.name, b"".join(file.buffered or ()))
            del self._files[file.first]

    def buffered_lines(self) -> list[bytes]:
        """The rows that are only in memory, because the store refused them."""
        return [line for file in self._buffered() for line in file.buffered or ()]

    def _buffered(self) -> list[NewFile]:
        return [file for file in self._files.values() if file.buffered is not None]

    def _begin(self, first: int) -> NewFile:
        """A new file for rows from `first` on."""
        file = self._files[first] = NewFile(first, f"{self._folder}{first:012}.jsonl")
        if not isinstance(self._store, LocalStore):
            file.buffered = []
            return file
        if len(self._expecting) >= MAX_OPEN_FILES:
            self._expecting.pop(next(iter(self._expecting))).close()
        self._store.delete([file.name])  # it has no complete row
        descriptor = self._store.open_append(file.name)
        file.rows_file = RowFile(descriptor, self._store.path / file.name)
        return file

    def _first_row(self, name: str) -> int:
        return int(name.removeprefix(self._folder).removesuffix(".jsonl"))

    def _stream(self, name: str) -> BinaryIO | None:
        file = self._files.get(self._first_row(name))
        if file is None or file.buffered is None:
            return super()._stream(name)
        return BytesIO(b"".join(file.buffered))


@dataclass
class NewFile:
    """A file that this command began: its lines are in `rows_file`, or `buffered` in memory."""

    first: int
    name: str
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    rows_file: RowFile | None = None
    buffered: list[bytes] | None = None

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first + self.rows

    @property
    def segment(self) -> Segment:
        """The rows until now."""
        return Segment(self.first, self.rows, self.errors, self.name)

    def append(self, line: bytes) -> None:
        """Save the next row. Raises OutputFailed."""
        if self.buffered is not None:
            self.buffered.append(line)
        else:
            assert self.rows_file is not None
            self.rows_file.append(line)
        self.rows += 1
        if code := error_of(line):
            self.errors[code] += 1

    def close(self, *, flushes: bool = True) -> None:
        """Flush the file to disk, unless it is removed next. Raises OutputFailed."""
        if self.rows_file is not None:
            file, self.rows_file = self.rows_file, None
            file.close(flushes=flushes)
