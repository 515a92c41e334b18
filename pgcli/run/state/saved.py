"""The saved rows of an output, in input order.

An output has parts: a Parquet file of a folder is one, and so is a whole JSON lines or Parquet
file. The rows of a Parquet part are lines in its log, `open/ROW.jsonl`, until its file is written;
a JSON lines output is its own log. ROW is the first row in the log: a part whose file has rows
already continues in a log after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.output import FOLDER, load_format, part_format
from pgcli.output.lines import LineFormat, parse_row
from pgcli.output.reader import OPEN, OPEN_FILE
from pgcli.rows import RowSchema
from pgcli.run.state.lines import (
    ALL_ROWS,
    Log,
    OutputPart,
    edited,
    error_of,
    is_cut_answer,
    merge_ranges,
)
from pgcli.run.state.parts import Parts, ReadKept
from pgcli.run.state.record import RunRecord
from pgcli.stores import LocalStore, Store, open_folder
from pgcli.stores.urls import is_in_object_store

#: Whether a part with this first row is read.
HasPart = Callable[[int], bool]
#: More complete lines after a damaged one are not truncated: that was no power failure.
MAX_CUT_LINES = 1000


def any_part(first: int) -> bool:
    """Read every part."""
    return True


def open_saved(
    output: str,
    record: Callable[[], RunRecord],
    states: Sequence[Store],
    *,
    schema: RowSchema | None = None,
    kept: ReadKept = lambda start, stop: None,
    per_item: int | None = None,
    create: bool = False,
) -> SavedRows:
    """The rows of an output whose logs are in these state folders; new logs are in the first one.

    With `create`, a missing output folder is created. With `per_item`, the rows of each item, the
    indexes of JSON lines are checked. Reading needs no schema and no kept columns.
    Raises FileNotFoundError for a missing folder.
    """
    path, schema = Path(output), schema or RowSchema()
    if output.endswith(FOLDER) or is_in_object_store(output) or path.is_dir():
        folder = open_folder(output, create=create, follow=True)
        files = Parts(folder, part_format(), record, schema, kept)
        return SavedRows(states, files)
    beside, format = LocalStore(path.parent, follow=True), load_format(path)
    if isinstance(format, LineFormat):
        return SavedRows(states, beside.path / path.name, per_item)
    files = Parts(beside, format, record, schema, kept, path.name)
    return SavedRows(states, files)


class SavedRows:
    """The parts of an output, by number; rows are added in order. Raises OutputFailed.

    `output` is a JSON lines file, or has the Parquet files.
    """

    def __init__(self, states: Sequence[Store], output: Parts | Path, per_item: int | None = None):
        self._states, self._per_item = states, per_item
        self._files = output if isinstance(output, Parts) else None
        self._path = None if isinstance(output, Parts) else output
        self.file_rows = ALL_ROWS if self._files is None else self._files.file_rows
        self.parts: dict[int, OutputPart] = {}
        self._probes: dict[int, bytes] = {}  # sample lines of logs, by row
        self._stale: list[Log] = []  # logs of rows that files of the output have
        self._full: int | None = None  # the part to write before the next row

    # --- saved rows

    def find(self) -> None:
        """Find the saved rows.

        Raises OutputExists for a file of another program or run, and for an edited one.
        """
        self.parts, self._probes, self._stale = {}, {}, []
        if self._path is not None:
            self._find_lines(self._path)
            return
        # logs first: rows of logs that disappear meanwhile are in files of the output
        logs = [(first, log, log.scan()) for first, log in self._logs()]
        logs.sort(key=lambda log: -log[2].rows)  # a shard and a whole run may each have a log
        assert self._files is not None
        for number, part in self._files.find().items():
            self.parts[number] = replace(part, errors=Counter(part.errors))
        for first, log, lines in logs:
            part = self._part_of(first)
            if lines.rows and part.log is None and first == part.end:
                part.log, part.in_log, part.rows = log, lines.rows, part.rows + lines.rows
                part.errors += lines.errors
                part.cut += lines.cut
                self._probes |= {first + line: probe for line, probe in lines.probes.items()}
                self.parts[first // self.file_rows] = part
            else:  # its rows are in a file by now, or follow rows that were deleted
                self._stale.append(log)

    def _find_lines(self, path: Path) -> None:
        log = self._output_log(path)
        lines = log.scan(self._per_item)
        if lines.foreign_row is not None:
            raise edited(path, lines.foreign_row)
        if lines.cut_lines > MAX_CUT_LINES:
            raise OutputExists(
                f"{path} is damaged at row {lines.rows + 1:,}, with {lines.cut_lines:,} rows after "
                "it",
                hint="restore or remove its line; another <-o> starts a new run; "
                "<--overwrite> replaces it",
            )
        self._probes = dict(lines.probes)
        self.parts = {0: OutputPart(0, lines.rows, lines.errors, log=log, cut=lines.cut)}

    def _logs(self) -> Iterator[tuple[int, Log]]:
        """The logs of parts, each with its first row."""
        for store in self._states:
            for entry in [*store.list(f"{OPEN}/")]:
                if match := OPEN_FILE.fullmatch(entry.name.removeprefix(f"{OPEN}/")):
                    yield int(match[1]), Log(store, entry.name)

    def _part_of(self, row: int) -> OutputPart:
        """The part that a row belongs to; a new one without rows."""
        number = row // self.file_rows
        return self.parts.get(number) or OutputPart(number * self.file_rows)

    def ranges(self) -> list[range]:
        """The saved rows in order."""
        parts = self.each_part(any_part)
        return merge_ranges(range(part.first, part.end) for _, part in parts if part.rows)

    def rows(
        self, has: HasPart = any_part, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The saved rows in order, with their numbers; of the parts with a first row that `has`.

        Parquet files are read with all `columns` or these. Raises OutputExists for an edited row.
        """
        for number, part in self.each_part(has):
            if self._files is not None:
                yield from enumerate(self._files.rows(number, columns), part.first)
            for row, line in self._log_lines(part):
                if (values := parse_row(line)) is None:
                    assert part.log is not None
                    raise edited(part.log.name, row)
                yield row, values

    def error_rows(self, has: HasPart = any_part) -> Iterator[tuple[int, str]]:
        """The numbers and codes of the failed rows in order, of the same parts as `rows`."""
        for number, part in self.each_part(has):
            if part.errors:
                if self._files is not None:
                    yield from self._files.error_rows(number)
                lines = self._log_lines(part)
                yield from ((row, code) for row, line in lines if (code := error_of(line)))

    def each_part(self, has: HasPart = any_part) -> list[tuple[int, OutputPart]]:
        """The parts with a first row that `has`, in order, with their numbers."""
        return [(number, part) for number, part in sorted(self.parts.items()) if has(part.first)]

    def _log_lines(self, part: OutputPart) -> Iterator[tuple[int, bytes]]:
        """The lines in the log of a part, with their rows."""
        first = part.first if self._files is None else part.log_first
        if part.log is not None and first < part.end:
            yield from enumerate(part.log.lines(0, part.end - first), first)

    def probes(self) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """A sample of the rows that `find` found, with their numbers; None for invalid rows."""
        if self._files is not None:
            yield from self._files.probes()
        yield from ((row, parse_row(line)) for row, line in self._probes.items())

    # --- new rows

    def begin(self) -> None:
        """Remove the logs of rows that the output has, and write the parts that are complete."""
        for log in self._stale:
            log.remove()
        self._stale = []
        if self._files is not None:
            for number, part in self.parts.items():
                if part.in_log and part.rows == self.file_rows:
                    self._write(number)

    def save(self, number: int, line: bytes) -> None:
        """Save the next row of its part.

        A part that is complete is written before the next row: if that fails, no row is lost.
        """
        self._write_full()
        part = self._part_of(number)
        assert number == part.end, f"row {part.end} is missing"
        if part.log is None and self._path is not None:
            part.log = self._output_log(self._path)
        elif part.log is None:  # a file of this name has no complete row
            part.log = Log(self._states[0], f"{OPEN}/{number:012}.jsonl")
        part.log.append(line)
        part.rows += 1
        part.in_log += self._files is not None
        part.cut += is_cut_answer(line)
        if code := error_of(line):
            part.errors[code] += 1
        self.parts[number // self.file_rows] = part
        if part.in_log and part.rows == self.file_rows:
            self._full = number // self.file_rows

    def finish(self, total: int) -> None:
        """Complete the output: all rows before `total` are saved."""
        if self._path is not None:
            part = self.parts.setdefault(0, OutputPart(0, log=self._output_log(self._path)))
            assert part.log is not None
            part.log.open()  # an output of no rows is an empty file
        elif self._files is not None and self._files.is_single and not self.parts:
            self.parts[0] = OutputPart(0)
            self._write(0)
        for number, part in self.parts.items():
            if part.in_log and part.first < total:
                self._write(number)
        self.close()

    def replace_rows(self, lines: Mapping[int, bytes]) -> None:
        """Replace rows of a complete output."""
        if self._files is not None:
            self._files.replace_rows(lines)
        elif self._path is not None:
            self.close()
            present = (line for part in self.parts.values() for _, line in self._log_lines(part))
            rows = (lines.get(number, line) for number, line in enumerate(present))
            folder = LocalStore(self._path.parent, follow=True)
            folder.publish(self._path.name, lambda file: file.writelines(rows))
        self.find()

    def remove(self) -> None:
        """Remove the output."""
        if self._files is not None:
            self._files.remove()
        elif self._path is not None:
            self._output_log(self._path).remove()

    def close(self) -> None:
        """Write a complete part, and flush all logs, or upload them."""
        try:
            self._write_full()
        finally:
            for part in self.parts.values():
                if part.log is not None:
                    part.log.close()

    def unsaved(self) -> list[bytes]:
        """The rows that are only in memory, because their store refused them."""
        logs = [part.log for part in self.parts.values() if part.log is not None]
        return [line for log in logs for line in log.unsaved]

    def _write_full(self) -> None:
        if self._full is not None:
            self._write(self._full)
            self._full = None

    def _write(self, number: int) -> None:
        """Write the file of a part, and remove its log."""
        assert self._files is not None
        part = self.parts[number]
        self._files.write(number, part)
        part.in_log, log, part.log = 0, part.log, None
        if log is not None:
            log.remove()

    def _output_log(self, path: Path) -> Log:
        return Log(LocalStore(path.parent, follow=True), path.name)
