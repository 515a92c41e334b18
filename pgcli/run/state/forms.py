"""The final forms of an output, which take rows in files of lines once they are complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pgcli.errors import OutputExists
from pgcli.output.lines import parse_row
from pgcli.rows import RowSchema
from pgcli.run.state.open_files import (
    ALL_ROWS,
    LineReader,
    OpenFiles,
    RowFile,
    Segment,
    in_order,
)
from pgcli.run.state.record import RunRecord
from pgcli.stores import LocalStore, open_folder
from pgcli.stores.urls import is_in_object_store
from pgcli.stores.writing import wrap_write_errors

if TYPE_CHECKING:
    import pyarrow

#: More whole lines than a power loss can cost are not cut off: something else damaged the file.
MAX_CUT_LINES = 1000


@dataclass(frozen=True)
class FormContext:
    """What forms need of a run: its record, rows in open files, columns, kept ones by row range.

    A form that is only read needs the first two.
    """

    record: Callable[[], RunRecord]
    files: OpenFiles
    schema: RowSchema = field(default_factory=RowSchema)
    kept: Callable[[int, int], pyarrow.Table | None] = lambda start, stop: None


class Form(Protocol):
    """The final form of an output. All methods raise OutputFailed and OutputExists."""

    def segments(self) -> list[Segment]:
        """The rows that are there. Raises OutputExists for a file that is not of the run."""

    def rows(self, segment: Segment, start: int) -> Iterator[Mapping[str, Any]]:
        """The rows of such a segment from one on."""

    def error_rows(self, segment: Segment, start: int) -> Iterator[int]:
        """The numbers of the rows with errors of such a segment, from one on."""

    def probes(self) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """Some of the rows that `segments` found, with their numbers; None if it is not a row."""

    def save(self, number: int, line: bytes) -> None:
        """Save a row that this process has answered. Rows come in order."""

    def take(self, segment: Segment) -> None:
        """Take the rows of an open file, which is removed once they are in the output."""

    def finish(self, total: int) -> None:
        """Complete the output of so many rows: all have been saved or taken."""

    def replace_rows(self, lines: Mapping[int, bytes]) -> None:
        """Put lines in place of rows of a complete output, among them all that have errors."""

    def remove(self) -> None:
        """Remove the output of an earlier run."""

    def close(self) -> None:
        """Complete what rows were saved in."""


def open_form(output: str, context: FormContext, *, create: bool = False) -> Form:
    """The final form of an output, by its name; a folder is created if it is to be.

    Raises FileNotFoundError for a folder that does not exist.
    """
    from pgcli.run.state.parquet_form import ParquetForm  # imports pyarrow

    path, rows = Path(output), context.record().file_rows
    if is_in_object_store(output):
        return ParquetForm(open_folder(output), context, rows)
    if output.endswith("/") or path.is_dir():
        return ParquetForm(LocalStore(path, create=create, follow=True), context, rows)
    folder = LocalStore(path.parent, follow=True)
    if path.suffix.lower() == ".parquet":
        return ParquetForm(folder, context, ALL_ROWS, path.name)
    return LinesForm(folder, path, context.files)


def saved_segments(form: Form, files: OpenFiles, alive: Collection[str] = ()) -> list[Segment]:
    """The rows that are saved in an output, and beside it in open files of no process `alive`.

    Raises OutputFailed and OutputExists.
    """
    left = files.segments(alive)  # before the output, which has the rows of those that go meanwhile
    return [*form.segments(), *left]


def saved_rows(
    form: Form, files: OpenFiles, segments: Iterable[Segment]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The columns of the saved rows in order, with their numbers, each once."""
    for segment, start, _ in in_order(segments):
        rows = (files if segment.name else form).rows(segment, start)
        yield from enumerate(rows, start)


def error_rows(form: Form, files: OpenFiles, segments: Iterable[Segment]) -> Iterator[int]:
    """The numbers of the saved rows with errors, in order."""
    for segment, start, _ in in_order(segments):
        if segment.errors:
            yield from (files if segment.name else form).error_rows(segment, start)


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
            self._file = RowFile(descriptor, str(self._output), self._size)
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
        self._rows = self._size = 0

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
