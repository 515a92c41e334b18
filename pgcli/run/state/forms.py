"""The final forms of an output: JSON lines, a Parquet file, a folder of Parquet files."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pgcli.errors import OutputExists, OutputFailed
from pgcli.output.parquet import (
    PART,
    PartInfo,
    iter_tables,
    part_metadata,
    part_name,
    read_part_info,
    write_parquet,
)
from pgcli.output.schema import MISMATCHES, rows_table
from pgcli.records import Answer
from pgcli.rows import RowSchema
from pgcli.run.state.open_files import (
    Lines,
    OpenFiles,
    RowFile,
    Segment,
    check_cut,
    error_of,
    scan_lines,
)
from pgcli.run.state.record import RunRecord
from pgcli.stores import LocalStore, Store
from pgcli.stores.writing import wrap_write_errors

if TYPE_CHECKING:
    import pyarrow

#: The rows of a file of an output that is one file.
ALL_ROWS = 2**62
#: Rows that are made a table at once.
TABLE_ROWS = 10_000
#: The end of a Parquet file in which its metadata mostly is.
END_BYTES = 2**16
THREADS = 32  # that read the ends of files at one time


@dataclass(frozen=True)
class FormContext:
    """What forms need of a run: columns, kept columns by row range, and rows in open files."""

    record: Callable[[], RunRecord]
    schema: RowSchema
    kept: Callable[[int, int], pyarrow.Table | None]
    files: OpenFiles


class Form(Protocol):
    """The final form of an output, which takes rows in files of lines once they are complete."""

    file_rows: int  # rows of a file of the output; an open file has rows of one only

    def segments(self) -> list[Segment]:
        """The rows that are there. Raises OutputExists for a file that is not of the run."""

    def take(self, segment: Segment, total: int | None) -> None:
        """Take the rows of an open file, of `total` rows in all. Raises OutputFailed."""

    def finish(self, total: int) -> None:
        """Complete the output: all rows have been taken. Raises OutputFailed."""

    def remove(self) -> None:
        """Remove the output of an earlier run. Raises OutputFailed, OutputExists."""

    def close(self) -> None:
        """Close what is open, after its rows are on disk."""


class LinesForm:
    """A JSON lines file: rows are appended to it in their order."""

    file_rows = ALL_ROWS

    def __init__(self, output: Path, context: FormContext):
        self._output, self._context = output, context
        self._folder = folder_of(output)
        self._file: RowFile | None = None
        self._rows = 0
        self._waiting: dict[int, Segment] = {}
        self.lines = Lines()

    def segments(self) -> list[Segment]:
        self.lines = self._scan()
        check_cut(str(self._output), self.lines)
        return [Segment(0, self.lines.rows, self.lines.errors)] if self.lines.rows else []

    def open(self) -> RowFile:
        """The file, cut after its last whole row and opened for more."""
        if self._file is None:
            descriptor = self._folder.open_append(self._output.name)
            with wrap_write_errors(self._output):
                os.ftruncate(descriptor, self.lines.size)
            self._file = RowFile(descriptor, str(self._output), self.lines.size)
            self._rows = self.lines.rows
        return self._file

    def append(self, line: bytes) -> None:
        """Save the next row, and rows of open files that follow it."""
        self._append(line)
        self._take_waiting()

    def take(self, segment: Segment, total: int | None) -> None:
        self.open()
        self._waiting[segment.first] = segment
        self._take_waiting()

    def _append(self, line: bytes) -> None:
        self.open().append(line)
        self._rows += 1

    def _take_waiting(self) -> None:
        while segments := [s for s in self._waiting.values() if s.first <= self._rows]:
            for waiting in segments:
                for line in self._context.files.lines(waiting, self._rows, waiting.end):
                    self._append(line)
                del self._waiting[waiting.first]
            self.open().sync()
            self._context.files.remove(waiting.name for waiting in segments)

    def finish(self, total: int) -> None:
        self.open()

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        self._folder.delete([self._output.name])
        self.lines = Lines()

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """The lines of some rows."""
        stream = self._folder.open(self._output.name)
        assert stream is not None
        with stream:
            for row, line in zip(range(stop), stream, strict=False):
                if row >= start:
                    yield line

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put a file with these lines in place of the output."""
        self.close()
        self._folder.publish(self._output.name, lambda file: file.writelines(lines))
        self.lines = self._scan()  # it is cut to their size when it is opened again

    def _scan(self) -> Lines:
        file = self._folder.open(self._output.name)
        if file is None:
            return Lines()
        with file, wrap_write_errors(self._output):
            return scan_lines(file.fileno())


class ParquetForm:
    """A Parquet file, written when all rows are there; rows of an earlier one are copied."""

    file_rows = ALL_ROWS

    def __init__(self, output: Path, context: FormContext):
        self.output, self._context = output, context
        self._segments: list[Segment] = []
        self._rows = 0  # in the file

    def segments(self) -> list[Segment]:
        self._rows = 0
        if not self.output.is_file():
            return []
        info = read_part_info(self.output)
        if info is None or info.run != self._context.record().run_id:
            return []  # it is replaced by the file of this run
        self._rows = info.rows
        return [Segment(0, info.rows, Counter(info.errors))]

    def take(self, segment: Segment, total: int | None) -> None:
        self._segments.append(segment)

    def finish(self, total: int) -> None:
        if not self._segments and self.output.is_file() and self._rows >= total:
            return
        errors = Counter[str]()
        for segment in self.segments():
            errors.update(segment.errors)
        errors.update(errors_between(self._context.files, self._segments, self._rows, total))
        metadata = metadata_of(self._context.record(), 0, max(total, self._rows), errors)
        folder_of(self.output).publish(
            self.output.name,
            lambda file: write_parquet(file, lambda: self._tables(total), metadata),
        )
        self._rows = max(total, self._rows)
        segments, self._segments = self._segments, []
        self._context.files.remove(s.name for s in segments if s.end <= self._rows)

    def tables(self, segment: Segment) -> Iterator[pyarrow.Table]:
        """The rows of the file as tables."""
        with self.output.open("rb") as stream:
            yield from iter_tables(stream)

    def rewrite(self, tables: Iterable[pyarrow.Table], errors: Mapping[str, int]) -> None:
        """Put other rows in place of those of the file."""
        metadata = metadata_of(self._context.record(), 0, self._rows, errors)
        folder_of(self.output).publish(
            self.output.name, lambda file: write_parquet(file, tables, metadata)
        )

    def remove(self) -> None:
        """The output of an earlier run stays until it is replaced as a whole."""

    def close(self) -> None:
        pass

    def _tables(self, total: int) -> Iterator[pyarrow.Table]:
        if self._rows:
            yield from self.tables(Segment(0, self._rows))
        yield from segment_tables(self._context, self._segments, self._rows, total)


class FolderForm:
    """A folder of Parquet files, each complete or not there, on this machine or in a store."""

    def __init__(self, store: Store, context: FormContext, file_rows: int):
        self._store, self._context, self.file_rows = store, context, file_rows
        self._parts: dict[int, Segment] = {}
        self._waiting: dict[int, list[Segment]] = {}

    def segments(self) -> list[Segment]:
        self._parts = {}
        matches = [PART.fullmatch(entry.name) for entry in self._store.list()]
        numbers = sorted(int(match[1]) for match in matches if match)
        with ThreadPoolExecutor(THREADS) as pool:
            for number, segment in zip(numbers, pool.map(self.part, numbers), strict=True):
                if segment is None:
                    raise OutputExists(
                        f"{self._store.url}{part_name(number)} is not a file of the run that the "
                        "folder belongs to",
                        hint="move it away; or choose another -o",
                    )
                self._parts[number] = segment
        return list(self._parts.values())

    def part(self, number: int) -> Segment | None:
        """The rows in a file of the folder, as any process of this run wrote it."""
        info = read_part_info(read_end(self._store, part_name(number)))
        if info is None or info.run != self._context.record().run_id:
            return None
        return Segment(number * self.file_rows, info.rows, Counter(info.errors))

    def is_complete(self, number: int, total: int) -> bool:
        """Whether a file has all of its rows."""
        known = self._parts.get(number)
        end = min((number + 1) * self.file_rows, total)
        if known is None or known.end < end:
            known = self.part(number)
            if known is not None:
                self._parts[number] = known
        return known is not None and known.end >= end

    def take(self, segment: Segment, total: int | None) -> None:
        number = segment.first // self.file_rows
        waiting = self._waiting.setdefault(number, [])
        waiting.append(segment)
        stop = (number + 1) * self.file_rows
        stop = stop if total is None else min(stop, total)
        saved = self._parts.get(number)
        row = number * self.file_rows if saved is None else saved.end
        for found in sorted(waiting, key=lambda one: one.first):
            row = max(row, found.end) if found.first <= row else row
        if row >= stop:
            self._publish(number, stop)

    def finish(self, total: int) -> None:
        for number in sorted(self._waiting):
            stop = min((number + 1) * self.file_rows, total)
            self._publish(number, stop)

    def close(self) -> None:
        pass

    def remove(self) -> None:
        names = [entry.name for entry in self._store.list() if PART.fullmatch(entry.name)]
        self._store.delete(names)

    def _publish(self, number: int, stop: int) -> None:
        """Write a file of the folder; rows of an earlier one with fewer rows are kept."""
        segments, saved = self._waiting.pop(number, []), self.part(number)
        first = number * self.file_rows
        start = first if saved is None else saved.end
        if segments and start < stop:
            errors = Counter[str]() if saved is None else saved.errors.copy()
            errors.update(errors_between(self._context.files, segments, start, stop))
            metadata = metadata_of(self._context.record(), first, stop - first, errors)
            earlier = [] if saved is None else self.read_tables(number)
            data = BytesIO()
            write_parquet(
                data,
                lambda: chain(earlier, segment_tables(self._context, segments, start, stop)),
                metadata,
            )
            self._write(number, data.getvalue(), replaces=saved is not None)
            self._parts[number] = Segment(first, stop - first, errors)
        end = max(start, stop)
        self._context.files.remove(segment.name for segment in segments if segment.end <= end)

    def _write(self, number: int, data: bytes, *, replaces: bool) -> None:
        name = part_name(number)
        if replaces:
            self._store.replace(name, data)
        elif not self._store.create(name, data) and self.part(number) is None:
            raise OutputFailed(
                f"{self._store.url}{name} was created by another program during the run",
                hint="move it away, then run the same command again to resume",
            )

    def tables(self, segment: Segment) -> Iterator[pyarrow.Table]:
        """The rows of a file of the folder as tables."""
        yield from self.read_tables(segment.first // self.file_rows)

    def read_tables(self, number: int) -> list[pyarrow.Table]:
        """The rows of a file as tables."""
        return list(iter_tables(BytesIO(self._store.read(part_name(number)) or b"")))

    def replace_part(
        self, number: int, tables: Iterable[pyarrow.Table], rows: int, errors: Mapping[str, int]
    ) -> None:
        """Put other rows in place of those of a file."""
        data, first = BytesIO(), number * self.file_rows
        write_parquet(data, tables, metadata_of(self._context.record(), first, rows, errors))
        self._store.replace(part_name(number), data.getvalue())


def segment_tables(
    context: FormContext, segments: Iterable[Segment], start: int, stop: int
) -> Iterator[pyarrow.Table]:
    """The rows from `start` to before `stop`, which open files have, as tables."""
    rows: list[Mapping[str, Any]] = []
    first = start
    for line in ordered_lines(context.files, segments, start, stop):
        rows.append(json.loads(line))
        if len(rows) == TABLE_ROWS:
            yield made_table(context, rows, first)
            first, rows = first + len(rows), []
    if rows or first == start:
        yield made_table(context, rows, first)


def saved_rows(
    form: Form, files: OpenFiles, segments: Iterable[Segment], schema: RowSchema
) -> Iterator[tuple[int, Answer]]:
    """The saved rows in order with their numbers, each once."""
    for row, values in saved_values(form, files, segments):
        yield row, schema.answer(values)


def saved_values(
    form: Form, files: OpenFiles, segments: Iterable[Segment]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The columns of the saved rows in order, with their numbers, each once."""
    row = 0
    for segment in sorted(segments, key=lambda one: (one.first, -one.rows)):
        row = max(row, segment.first)
        if row < segment.end:
            for values in segment_rows(form, files, segment, row):
                yield row, values
                row += 1


def error_rows(form: Form, files: OpenFiles, segments: Iterable[Segment]) -> Iterator[int]:
    """The numbers of the saved rows with errors."""
    row = 0
    for segment in sorted(segments, key=lambda one: (one.first, -one.rows)):
        row = max(row, segment.first)
        if row < segment.end and segment.errors:
            yield from segment_errors(form, files, segment, row)
        row = max(row, segment.end)


def segment_errors(form: Form, files: OpenFiles, segment: Segment, start: int) -> Iterator[int]:
    """The numbers of the rows with errors of a segment, from one row on."""
    if isinstance(form, ParquetForm | FolderForm) and not segment.name:
        first = segment.first
        for table in form.tables(segment):
            for number, error in enumerate(table.column("error").to_pylist(), first):
                if error is not None and number >= start:
                    yield number
            first += len(table)
        return
    if isinstance(form, LinesForm) and not segment.name:
        lines = form.read(start, segment.end)
    else:
        lines = files.lines(segment, start, segment.end)
    yield from (number for number, line in enumerate(lines, start) if error_of(line))


def segment_rows(
    form: Form, files: OpenFiles, segment: Segment, start: int
) -> Iterator[Mapping[str, Any]]:
    """The rows of a segment from one on, in the output or in an open file."""
    if segment.name:
        yield from map(json.loads, files.lines(segment, start, segment.end))
    elif isinstance(form, LinesForm):
        yield from map(json.loads, form.read(start, segment.end))
    else:
        first = segment.first
        assert isinstance(form, ParquetForm | FolderForm)
        for table in form.tables(segment):
            end = first + len(table)
            yield from table.slice(max(0, start - first)).to_pylist()
            first = end


def ordered_lines(
    files: OpenFiles, segments: Iterable[Segment], start: int, stop: int
) -> Iterator[bytes]:
    """Each row's line once, in order, from segments that may overlap."""
    row = start
    for segment in sorted(segments, key=lambda one: (one.first, -one.rows)):
        if segment.first <= row < segment.end:
            yield from files.lines(segment, row, min(segment.end, stop))
            row = min(segment.end, stop)
    if row < stop:
        raise AssertionError(f"row {row} is in no file")


def errors_between(
    files: OpenFiles, segments: Iterable[Segment], start: int, stop: int
) -> Counter[str]:
    """The errors of the rows that `ordered_lines` has."""
    errors, row = Counter[str](), start
    for segment in sorted(segments, key=lambda one: (one.first, -one.rows)):
        if segment.first <= row < segment.end:
            end = min(segment.end, stop)
            if (row, end) == (segment.first, segment.end):
                errors.update(segment.errors)
            elif segment.errors:
                errors.update(filter(None, map(error_of, files.lines(segment, row, end))))
            row = end
    return errors


def made_table(context: FormContext, rows: list[Mapping[str, Any]], first: int) -> pyarrow.Table:
    """Rows as a table with their kept columns. Raises OutputExists for values that do not fit."""
    record = context.record()
    kept = context.kept(first, first + len(rows))
    try:
        return rows_table(rows, context.schema, kept, record.model.get("embedding_dim"))
    except MISMATCHES as problem:
        raise OutputExists(
            f"a kept column now has values of another type: {problem}",
            hint="another -o starts anew; --overwrite replaces it",
        ) from problem


def metadata_of(
    record: RunRecord, first: int, rows: int, errors: Mapping[str, int]
) -> dict[bytes, bytes]:
    """The metadata of a Parquet file of a run: its settings, and which rows the file has."""
    settings = {**record.settings, **record.model, "versions": dict(record.versions)}
    return part_metadata(PartInfo(record.run_id, first, rows, errors, settings))


def read_end(store: Store, name: str) -> bytes:
    """The end of a Parquet file, with its metadata; empty where there is no file."""
    end = store.read(name, last=END_BYTES) or b""
    length = int.from_bytes(end[-8:-4], "little") + 8
    return end if length <= len(end) else store.read(name, last=length) or b""


def folder_of(output: Path) -> LocalStore:
    """The folder that an output file is in."""
    return LocalStore(output.parent, follow=True)
