"""An output that is a JSON lines file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.output.lines import parse_row
from pgcli.pipeline.state.open_files import LineReader, OpenFiles, RowFile, Segment
from pgcli.stores import LocalStore
from pgcli.stores.writing import wrap_write_errors

#: More whole lines than a power loss can cost are not cut off: something else damaged the file.
MAX_CUT_LINES = 1000


class LinesForm(LineReader):
    """A JSON lines file: rows are appended to it in their order."""

    def __init__(self, folder: LocalStore, output: Path, files: OpenFiles):
        super().__init__(folder, output.name)
        self._folder, self._output, self._files = folder, output, files
        self._file: RowFile | None = None
        self._rows = self._size = 0
        self._probes: Mapping[int, bytes] = {}
        self._waiting: dict[int, Segment] = {}

    def segments(self) -> list[Segment]:
        lines = self.scan(self._name)
        if lines.is_foreign:
            raise OutputExists(
                f"{self._output} has other lines than the run that it belongs to",
                hint="move it away, or choose another -o; --overwrite replaces it",
            )
        if lines.cut_lines > MAX_CUT_LINES:
            raise OutputExists(
                f"{self._output} is damaged at row {lines.rows + 1:,}, with {lines.cut_lines:,} "
                "rows after it",
                hint="restore or remove its line; another -o starts anew; --overwrite replaces it",
            )
        self._rows, self._size, self._probes = lines.rows, lines.size, lines.probes
        return [Segment(0, lines.rows, lines.errors)] if lines.rows else []

    def probes(self) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        return ((number, parse_row(line)) for number, line in self._probes.items())

    def save(self, number: int, line: bytes) -> None:
        self._append(line)
        self._take_waiting()  # rows that killed processes left may follow

    def take(self, segment: Segment) -> None:
        self._waiting[segment.first] = segment
        self._take_waiting()

    def _take_waiting(self) -> None:
        while segments := [s for s in self._waiting.values() if s.first <= self._rows]:
            for segment in segments:
                for line in self._files.lines(segment, self._rows, segment.end):
                    self._append(line)
                del self._waiting[segment.first]
            self._opened().sync()
            self._files.remove(segment.name for segment in segments)

    def _append(self, line: bytes) -> None:
        self._opened().append(line)
        self._rows, self._size = self._rows + 1, self._size + len(line)

    def _opened(self) -> RowFile:
        """The file, cut after its last whole row and opened for more."""
        if self._file is None:
            descriptor = self._folder.open_append(self._name)
            with wrap_write_errors(self._output):
                os.ftruncate(descriptor, self._size)
            self._file = RowFile(descriptor, self._output, self._size)
        return self._file

    def finish(self, total: int) -> None:
        self._opened()  # an output of no rows is an empty file
        self.close()

    def replace_rows(self, lines: Mapping[int, bytes]) -> None:
        self.close()
        present = self.lines(Segment(0, self._rows), 0, self._rows)
        merged = (lines.get(number, line) for number, line in enumerate(present))
        self._folder.publish(self._name, lambda file: file.writelines(merged))
        self.segments()

    def remove(self) -> None:
        self._folder.delete([self._name])

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
