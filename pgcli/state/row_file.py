"""A file of rows, one JSON line each, compared with the input they were made from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pgcli.records import Item
from pgcli.state.input_check import InputCheck
from pgcli.state.progress import FileCheckpoint
from pgcli.state.record_file import Position, RecordFile, read_rows, recover


class RowFile:
    """A file of rows in input order: recovered if it exists, created with its first row.

    `checkpoint` is the part known to be on disk. Bytes that are not rows are moved to `torn_file`,
    and `torn` counts them. A file `is_new` if an existing one is not to be read. Raises
    OutputFailed; messages name the `output`.
    """

    def __init__(
        self,
        file: Path,
        torn_file: Path,
        checkpoint: FileCheckpoint,
        *,
        is_new: bool = False,
        output: Path | None = None,
    ):
        self.file = file
        output = output or file
        self.torn = 0
        self.checkpoint = checkpoint
        self.errors: Counter[str] = Counter()
        self._lines: RecordFile | None = None
        self._input_check = InputCheck(output)
        if file.exists() and not is_new:
            found = recover(file, Position(checkpoint.bytes, checkpoint.rows), torn_file)
            self.torn, self.errors = found.torn, found.errors
            self._lines = RecordFile(file, found.end)
            counted = found.parsed_from
            if counted.rows:
                self.errors.update(checkpoint.errors)
            tail = read_rows(file, counted.bytes)
            self._input_check = InputCheck(
                output, found.end.rows, counted.rows, checkpoint.digest, tail
            )

    @property
    def rows(self) -> int:
        """The number of rows saved."""
        return self._lines.end.rows if self._lines is not None else 0

    @property
    def is_compared(self) -> bool:
        """Whether every saved row was compared with the input."""
        return self._input_check.digest is not None

    def is_new(self, row_index: int, item: Item, prompt: str) -> bool:
        """Whether the row is not saved yet. Call it for each row of this file, in order.

        Raises OutputExists where the saved row is of another item or prompt.
        """
        return self._input_check.is_new(row_index, item, prompt)

    def append(self, line: bytes, error: str | None) -> None:
        """Save the next row, a line of JSON."""
        self.create().append(line)
        self._input_check.count_saved()
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
        end, digest = self._lines.sync(), self._input_check.digest
        if digest is not None:
            self.checkpoint = FileCheckpoint(end.rows, end.bytes, digest, dict(self.errors))
        return self.checkpoint

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
