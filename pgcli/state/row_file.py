"""A file of rows, one JSON line each, compared with the input they were made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.records import NO_STAMP, Item
from pgcli.state.input_check import InputCheck, RowComparer, SavedInput
from pgcli.state.input_records import InputRecords
from pgcli.state.progress import FileCheckpoint
from pgcli.state.record_file import Position, RecordFile, read_rows, recover
from pgcli.state.row_input import RowInput
from pgcli.state.write_errors import wrap_write_errors


class RowFile:
    """A file of rows in input order: recovered if it exists, created with its first row.

    `checkpoint` is the part known to be on disk, `records` the input of each row. Bytes that are
    not rows are moved to `torn_file`, and `torn` counts them. A file `is_new` if an existing one is
    not to be read. Raises OutputFailed.
    """

    def __init__(
        self,
        file: Path,
        torn_file: Path,
        checkpoint: FileCheckpoint,
        records: InputRecords,
        comparer: RowComparer,
        *,
        is_new: bool = False,
    ):
        self.file, self.records = file, records
        self.torn = 0
        self.checkpoint = checkpoint
        self.errors: Counter[str] = Counter()
        self._lines: RecordFile | None = None
        saved = SavedInput(records)
        if file.exists() and not is_new:
            found = recover(file, Position(checkpoint.bytes, checkpoint.rows), torn_file)
            self.torn, self.errors = found.torn, found.errors
            self._lines = RecordFile(file, found.end)
            counted = found.parsed_from
            if counted.rows:
                self.errors.update(checkpoint.errors)
            start = Position() if comparer.is_moved else counted
            read = partial(read_numbered, file, start)
            saved = SavedInput(records, found.end.rows, counted.rows, checkpoint.digest, read)
        self._input_check = InputCheck(saved, comparer)

    @property
    def rows(self) -> int:
        """The number of rows saved."""
        return self._lines.end.rows if self._lines is not None else 0

    @property
    def is_compared(self) -> bool:
        """Whether every saved row was compared with the input."""
        return self._input_check.digest is not None

    def is_new(self, row_index: int, row_input: RowInput, item: Item, prompt: str) -> bool:
        """Whether the row is not saved yet. Call it for each row of this file, in order.

        Raises OutputExists where the saved row is of another input.
        """
        return self._input_check.is_new(row_index, row_input, item, prompt)

    def append(self, line: bytes, error: str | None, row_input: RowInput) -> None:
        """Save the next row, a line of JSON. The image of an error row may be repaired later."""
        if error is not None:
            row_input = replace(row_input, stamp=NO_STAMP)
        lines = self.create()
        self.records.write(lines.end.rows, row_input)
        lines.append(line)
        self._input_check.count_saved(row_input)
        if error is not None:
            self.errors[error] += 1

    def create(self) -> RecordFile:
        """The open file, created if it does not exist."""
        if self._lines is None:
            self._lines = RecordFile(self.file)
        return self._lines

    def rename(self, file: Path) -> None:
        """Give the file another name, replacing the file that has it."""
        self.create().rename(file)
        self.file = file

    def sync(self) -> FileCheckpoint:
        """Flush all rows to disk and return the new checkpoint.

        The checkpoint of the previous run stands until all its rows have been compared.
        """
        if self._lines is None:
            return FileCheckpoint()
        self.records.sync()
        end, digest = self._lines.sync(), self._input_check.digest
        if digest is not None:
            self.checkpoint = FileCheckpoint(end.rows, end.bytes, digest, dict(self.errors))
        return self.checkpoint

    def close(self) -> None:
        self.records.close()
        if self._lines is not None:
            self._lines.close()


def read_saved(file: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """The rows that a run saved, from a byte of the file on. Raises OutputFailed."""
    with wrap_write_errors(file):
        yield from read_rows(file, start)


def read_numbered(file: Path, start: Position) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows that a run saved from a position on, with their indices. Raises OutputFailed."""
    return enumerate(read_saved(file, start.bytes), start.rows)
