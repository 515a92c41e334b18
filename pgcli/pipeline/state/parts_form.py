"""The final form of Parquet outputs: rows wait in open files until a part is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pgcli.pipeline.state.lines import Coverage, Segment, errors_in, without_overlap
from pgcli.pipeline.state.open_rows import OpenRows
from pgcli.pipeline.state.parts import Parts


class PartsForm(Parts):
    """Parquet files: each is written when all of its rows are in open files."""

    def __init__(self, *arguments: Any, early: OpenRows):
        super().__init__(*arguments)
        self._early = early
        self._left: dict[int, list[Segment]] = {}  # of earlier commands, by the file of the output
        self._ready = Coverage([])  # rows in files of the output and in open files
        self._complete: list[int] = []  # the files that can be written from open files

    def begin(self, waiting: Sequence[Segment]) -> None:
        """Use the rows of earlier commands in open files."""
        self._ready = Coverage([*self._parts.values(), *waiting])
        for segment in waiting:
            self._left.setdefault(segment.first // self.file_rows, []).append(segment)
        for number in sorted(self._left):
            self._note_if_complete(number)
        self._write_complete()

    def save(self, number: int, line: bytes) -> None:
        """Save a row, after writing the files that were already complete.

        If such a file cannot be written, its last row is not lost.
        """
        self._write_complete()
        self._early.append(number, line)
        self._ready.add(number, number + 1)
        self._note_if_complete(number // self.file_rows)

    def add_part(self, rows: range, errors: Counter[str]) -> None:
        """Note that a worker has written the file with these rows, and count their errors."""
        number = rows.start // self.file_rows
        if (saved := self._parts.get(number)) is not None:
            errors = saved.errors + errors
        first = number * self.file_rows
        self._parts[number] = Segment(first, rows.stop - first, errors)
        self._ready.add(rows.start, rows.stop)

    def finish(self, total: int) -> None:
        """Complete the output, once all rows are saved."""
        for number in range(-(-total // self.file_rows)):
            self._write_part(number, min((number + 1) * self.file_rows, total))
        if self._name and self.part(0) is None:
            self._write_part(0, total)  # of no rows

    def close(self) -> None:
        """Write complete files, and flush the open ones. Raises OutputFailed."""
        try:
            self._write_complete()
        finally:
            self._early.close()
            self._early.put_buffered()

    def _note_if_complete(self, number: int) -> None:
        if self._ready.end_of(number * self.file_rows) >= (number + 1) * self.file_rows:
            self._complete.append(number)

    def _write_complete(self) -> None:
        while self._complete:
            number = self._complete[-1]
            self._write_part(number, (number + 1) * self.file_rows)
            self._complete.pop()

    def _write_part(self, number: int, stop: int) -> None:
        """Write a file from open files, then remove these."""
        first = number * self.file_rows
        segments = [*self._left.pop(number, ()), *self._early.within(first, stop)]
        if segments or (self._name and not self._parts):

            def lines(start: int, stop: int) -> Iterator[bytes]:
                for segment, begin, end in without_overlap(segments, start, stop):
                    yield from self._early.lines(segment, begin, end)

            start = self.end_of(number)
            self.write(number, stop, lines, self._errors(segments, start, stop))
        end = max(stop, self.end_of(number))
        self._early.remove(segment.name for segment in segments if segment.end <= end)

    def _errors(self, segments: Sequence[Segment], start: int, stop: int) -> Counter[str]:
        """The error counts of rows in open files."""
        errors = Counter[str]()
        for segment, begin, end in without_overlap(segments, start, stop):
            if (begin, end) == (segment.first, segment.end) or not segment.errors:
                errors += segment.errors
            else:
                errors += errors_in(self._early.lines(segment, begin, end))
        return errors
