"""The final form of a JSON lines output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from pgcli.errors import OutputExists
from pgcli.output.lines import parse_row
from pgcli.pipeline.state.in_order import InOrder
from pgcli.pipeline.state.lines import SYNC_SECONDS, LineReader, RowFile, Segment
from pgcli.pipeline.state.open_rows import OpenRows
from pgcli.stores import LocalStore
from pgcli.stores.writing import wrap_write_errors

#: More complete lines after a damaged one are not truncated: that was no power failure.
MAX_CUT_LINES = 1000


class LinesForm(LineReader):
    """A JSON lines file: rows are appended in input order; early rows wait in open files."""

    def __init__(self, folder: LocalStore, output: Path, early: OpenRows):
        super().__init__(folder, output.name)
        self._folder, self._output, self._early = folder, output, early
        self._file: RowFile | None = None
        self._rows = self._size = 0
        self._probes: Mapping[int, bytes] = {}
        self._order = InOrder(early, self._append)
        self._removes_at = 0.0

    def segments(self) -> list[Segment]:
        """The saved rows. Raises OutputExists for a file of another program."""
        lines = self.scan(self._name)
        if lines.is_foreign:
            raise OutputExists(
                f"{self._output} was changed: its rows differ from those that its run saved",
                hint="move it away, or choose another <-o>; <--overwrite> replaces it",
            )
        if lines.cut_lines > MAX_CUT_LINES:
            raise OutputExists(
                f"{self._output} is damaged at row {lines.rows + 1:,}, with {lines.cut_lines:,} "
                "rows after it",
                hint="restore or remove its line; another <-o> starts a new run; "
                "<--overwrite> replaces it",
            )
        self._rows, self._size, self._probes = lines.rows, lines.size, lines.probes
        return [Segment(0, lines.rows, lines.errors)] if lines.rows else []

    def probes(self) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """A sample of the rows that `segments` found, with their numbers; None for invalid rows."""
        return ((number, parse_row(line)) for number, line in self._probes.items())

    def begin(self, waiting: Sequence[Segment]) -> None:
        """Use the rows of earlier commands in open files."""
        self._order = InOrder(self._early, self._append, first=self._rows)
        self._order.begin(waiting)

    def save(self, number: int, line: bytes) -> None:
        """Save a row."""
        self._order.save(number, line)
        if self._order.delivered and monotonic() >= self._removes_at:
            self._remove_delivered()

    def finish(self, total: int) -> None:
        """Complete the output, once all rows are saved."""
        assert self._rows >= total, f"row {self._rows} is missing"
        self._opened()  # an output of no rows is an empty file
        self.close()

    def replace_rows(self, lines: Mapping[int, bytes]) -> None:
        """Replace rows of a complete output."""
        self.close()
        present = self.lines(Segment(0, self._rows), 0, self._rows)
        merged = (lines.get(number, line) for number, line in enumerate(present))
        self._folder.publish(self._name, lambda file: file.writelines(merged))
        self.segments()

    def remove(self) -> None:
        """Remove the output."""
        self._folder.delete([self._name])

    def close(self) -> None:
        """Flush and close all files. Raises OutputFailed."""
        if self._order.delivered:
            self._remove_delivered()
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
        self._early.close()

    def _append(self, first: int, lines: Sequence[bytes]) -> None:
        assert first == self._rows, f"row {self._rows} is missing"
        data = b"".join(lines)
        self._opened().append(data)
        self._rows, self._size = first + len(lines), self._size + len(data)

    def _remove_delivered(self) -> None:
        """Remove open files, once their rows in the output are flushed to disk."""
        self._opened().sync()
        self._order.remove_delivered()
        self._removes_at = monotonic() + SYNC_SECONDS

    def _opened(self) -> RowFile:
        """The file, truncated after its last complete row and opened for appending."""
        if self._file is None:
            descriptor = self._folder.open_append(self._name)
            with wrap_write_errors(self._output):
                os.ftruncate(descriptor, self._size)
            self._file = RowFile(descriptor, self._output, self._size)
        return self._file
