"""Rows that are ahead of their turn: files of lines in a state folder, `open/FIRST.jsonl`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import BinaryIO

from pgcli.output.reader import OPEN, OPEN_FILE
from pgcli.pipeline.state.lines import ALL_ROWS, LineReader, RowFile, Segment, error_of
from pgcli.stores import LocalStore, Store

#: Files that are open for appending at one time.
MAX_OPEN_FILES = 64


class OpenRows(LineReader):
    """Files of consecutive rows in a folder of the state, each named by its first row.

    A file ends before each multiple of `file_rows`. An object store has no files to append to: its
    rows are buffered in memory, and `put_buffered` puts those that did not go into the output.
    """

    def __init__(self, store: Store, folder: str = OPEN, *, file_rows: int = ALL_ROWS):
        super().__init__(store)
        self._folder, self._file_rows = f"{folder}/", file_rows
        self._files: dict[int, NewFile] = {}  # by their first rows
        self._expecting: dict[int, NewFile] = {}  # by the row that comes next, those that are open

    def names(self) -> list[str]:
        """The files of rows that there are."""
        names = (entry.name for entry in self._store.list(self._folder))
        return [name for name in names if OPEN_FILE.fullmatch(name.removeprefix(self._folder))]

    def segments(self) -> list[Segment]:
        """The rows in the files that there are. Raises OutputFailed and OutputExists.

        A file without a whole row is none of them: a new file may take its name.
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
        """The rows of the file that was begun here with this row."""
        file = self._files.get(first)
        return None if file is None else file.segment

    def within(self, start: int, stop: int) -> list[Segment]:
        """The rows of files that were begun here with a row from `start` to before `stop`."""
        return [file.segment for first, file in self._files.items() if start <= first < stop]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files whose rows are in the output."""
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
        """Complete all files that are open. Raises OutputFailed."""
        while self._expecting:
            self._expecting.popitem()[1].close()

    def put_buffered(self) -> None:
        """Put the rows that are buffered for an object store. Raises OutputFailed."""
        for file in self._buffered():
            self._store.replace(file.name, b"".join(file.buffered or ()))
            del self._files[file.first]

    def buffered_lines(self) -> list[bytes]:
        """The rows that are in memory only, as the store did not take them."""
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
        self._store.delete([file.name])  # it has no whole row
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
    """A file of rows that was begun here: its lines are in `rows_file`, or `buffered` in memory."""

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
