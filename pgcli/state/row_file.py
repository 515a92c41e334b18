"""Rows saved one after the other in a file, compared with the input they were made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from pgcli.records import Item
from pgcli.state.input_check import InputCheck
from pgcli.state.record_file import Mark, RecordFile, lines, parsed, recovered


@dataclass
class Checkpoint:
    """How far a file of rows was when it was last made to outlast a power cut."""

    rows: int = 0
    bytes: int = 0
    digest: str = ""
    errors: dict[str, int] = field(default_factory=dict)


class RowFile:
    """A file of rows in the input's order, recovered where it is there, made with its first row.

    Bytes that are no rows go `aside`, and `torn` is how many there were. `safe` is how far the file
    is known to be on disk. One that is to be new is not looked into: what has its name is replaced.
    Raises OutputFailed, and OutputExists as rows of the input go by that are not those saved.
    """

    def __init__(
        self,
        file: Path,
        aside: Path,
        safe: Checkpoint,
        *,
        is_new: bool = False,
        output: Path | None = None,
    ):
        self.file = file
        output = output or file
        self.torn = 0
        self.safe = safe
        self.errors: Counter[str] = Counter()
        self._log: RecordFile | None = None
        self._passing = InputCheck(output)
        if file.exists() and not is_new:
            found = recovered(file, Mark(safe.bytes, safe.rows), aside)
            self.torn = found.torn
            self._log = RecordFile(file, found.end)
            counted = found.parsed_from.rows
            self.errors = found.errors
            self.errors.update(safe.errors if counted else {})
            tail = rows_of(file, found.parsed_from)
            self._passing = InputCheck(output, found.end.rows, counted, safe.digest, tail)

    @property
    def rows(self) -> int:
        """How many rows are saved."""
        return self._log.mark.rows if self._log is not None else 0

    @property
    def is_compared(self) -> bool:
        """Whether all rows saved were compared with the input."""
        return self._passing.digest is not None

    def is_new(self, place: int, item: Item, prompt: str) -> bool:
        """Whether the row with this place in the file is not saved yet. Asked of each, in order."""
        return self._passing.is_new(place, item, prompt)

    def add(self, line: bytes, error: str | None) -> None:
        """Save the next row, which is a line of JSON."""
        self.made().add(line)
        self._passing.saved()
        if error is not None:
            self.errors[error] += 1

    def made(self) -> RecordFile:
        """The file, which is made if it is not there."""
        if self._log is None:
            self._log = RecordFile(self.file)
        return self._log

    def sync(self) -> Checkpoint:
        """Have all rows outlast a power cut, and say how far that is.

        A run that ends before it has compared all that was saved says what the one before it said.
        """
        if self._log is None:
            return Checkpoint()
        mark, digest = self._log.sync(), self._passing.digest
        if digest is not None:
            self.safe = Checkpoint(mark.rows, mark.bytes, digest, dict(self.errors))
        return self.safe

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def rows_of(file: Path, start: Mark) -> Iterator[Mapping[str, Any]]:
    """The rows behind a mark, one by one, up to the first line that is none."""
    found = (parsed(line) for line in lines(file, start.bytes))
    yield from takewhile(lambda row: row is not None, found)
