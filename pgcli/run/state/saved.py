"""The saved rows of an output, in input order.

An output has parts: a Parquet file of a folder is one, and so is a whole JSON lines or Parquet
file. The rows of a Parquet part are lines in its log, `open/ROW.jsonl`, until its file is written;
a JSON lines output is its own log. ROW is the first row in the log: a part whose file has rows
already continues in a log after them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow

from pgcli.arrow import as_text
from pgcli.errors import OutputExists, OutputFailed
from pgcli.output import FOLDER, PART, load_format, part_format, part_name
from pgcli.output.lines import LineFormat, parse_row
from pgcli.output.reader import OPEN, OPEN_FILE
from pgcli.output.schema import rows_of_table, rows_table
from pgcli.output.tables import PartInfo, TableFormat, bounded, part_metadata
from pgcli.rows import RowSchema
from pgcli.run.state.lines import (
    ALL_ROWS,
    Log,
    OutputPart,
    changed,
    edited,
    error_of,
    errors_in,
    is_cut_answer,
    merge_ranges,
    open_stream,
)
from pgcli.run.state.record import RunRecord
from pgcli.stores import LocalStore, Store, open_folder
from pgcli.stores.urls import is_in_object_store

#: The bytes at the end of a Parquet file that usually contain its metadata.
END_BYTES = 2**16
THREADS = 32  # that read the ends of files at one time

#: Whether a part with this first row is read.
HasPart = Callable[[int], bool]
#: The kept columns of the rows from one to before another; None where lines have them.
ReadKept = Callable[[int, int], "pyarrow.Table | None"]


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
        self._stale: list[Log] = []  # logs of rows that files of the output have
        self._full: int | None = None  # the part to write before the next row

    # --- saved rows

    def find(self) -> None:
        """Find the saved rows.

        Raises OutputExists for a file of another program or run, and for an edited one.
        """
        self.parts, self._stale = {}, []
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
                self.parts[first // self.file_rows] = part
            else:  # its rows are in a file by now, or follow rows that were deleted
                self._stale.append(log)

    def _find_lines(self, path: Path) -> None:
        log = self._output_log(path)
        lines = log.scan(self._per_item)
        if lines.foreign_row is not None:
            raise edited(path, lines.foreign_row)
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
        self, has: HasPart = any_part, columns: Sequence[str] | None = None, every: int = 1
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The saved rows in order, with their numbers; of the parts with a first row that `has`.

        Parquet files are read with all `columns` or these. One row in `every` is returned. Raises
        OutputExists for an edited row.
        """
        for number, part in self.each_part(has):
            if self._files is not None:
                rows = enumerate(self._files.rows(number, columns), part.first)
                yield from (row for row in rows if row[0] % every == 0)
            for at, line in self._log_lines(part):
                if at % every == 0:
                    if (values := parse_row(line)) is None:
                        assert part.log is not None
                        raise edited(part.log.name, at)
                    yield at, values

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


class Parts:
    """Parquet files, each complete or missing, on this machine or in a store.

    File N of a folder has `file_rows` rows from row N * `file_rows` on. A single file has a `name`
    and all rows. Reading needs no schema and no kept columns. All methods raise OutputFailed and
    OutputExists.
    """

    def __init__(
        self,
        store: Store,
        format: TableFormat,
        record: Callable[[], RunRecord],
        schema: RowSchema,
        kept: ReadKept,
        name: str = "",
    ):
        self._store, self._format, self._record = store, format, record
        self._schema, self._kept, self._name = schema, kept, name
        self.is_single = bool(name)
        self.file_rows = ALL_ROWS if name else record().file_rows
        self._parts: dict[int, OutputPart] = {}

    def find(self) -> dict[int, OutputPart]:
        """The rows in each file, by its number. Raises OutputExists for a file of another run."""
        sizes = self._sizes()
        with ThreadPoolExecutor(THREADS) as pool:
            parts = dict(zip(sizes, pool.map(self.part, sizes, sizes.values()), strict=True))
        for number, part in parts.items():
            if part is None:
                raise OutputExists(
                    f"{self._label(number)} was not written by the run of this output",
                    hint="move it away, or choose another <-o>",
                )
        self._parts = {number: part for number, part in parts.items() if part is not None}
        return self._parts

    def part(self, number: int, size: int | None = None) -> OutputPart | None:
        """The rows in a file of this run; None for a missing or foreign file."""
        stream = self._open_end(self._name_of(number), size)
        info = None if stream is None else self._format.part_info(stream)
        if info is None or info.run != self._record().run_id:
            return None
        return OutputPart(number * self.file_rows, info.rows, Counter(info.errors), cut=info.cut)

    def rows(
        self, number: int, columns: Sequence[str] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """The rows in a file, with all columns or some; none for a missing file."""
        if number in self._parts:
            for _, table in self._tables(self._parts[number], columns):
                yield from rows_of_table(table)

    def error_rows(self, number: int) -> Iterator[tuple[int, str]]:
        """The numbers and codes of the failed rows in a file; none for a missing file."""
        if number in self._parts and self._parts[number].errors:
            for first, table in self._tables(self._parts[number], ["error"]):
                for row, code in enumerate(table["error"].to_pylist(), first):
                    if code is not None:
                        yield row, code

    # new rows

    def write(self, number: int, part: OutputPart) -> None:
        """Write the file of a part: the rows of a shorter file, then the rows in the part's log."""
        saved = self._parts.get(number)

        def tables() -> Iterator[pyarrow.Table]:
            earlier = () if saved is None else self._tables(saved)
            lines = () if part.log is None else part.log.lines(0, part.in_log)
            new = self._new(lines, part.log_first, part.end)
            yield from chain((table for _, table in earlier), new)

        self._write(number, tables, part, replace=saved is not None)
        errors = Counter(part.errors)
        self._parts[number] = OutputPart(part.first, part.rows, errors, cut=part.cut)

    def replace_rows(self, lines: Mapping[int, bytes]) -> None:
        """Replace rows of a complete output."""
        for number in sorted({row // self.file_rows for row in lines}):
            part = self._parts[number]
            own = {row: line for row, line in lines.items() if part.first <= row < part.end}
            errors = errors_in(own.values())
            errors.update(code for row, code in self.error_rows(number) if row not in own)
            cut = sum(map(is_cut_answer, own.values())) + sum(
                finish == "length"
                for first, table in self._tables(part, ["finish"])
                for row, finish in enumerate(table.to_pydict().get("finish", ()), first)
                if row not in own
            )
            part = OutputPart(part.first, part.rows, errors, cut=cut)
            self._write(number, partial(self._merged, part, own), part, replace=True)
            self._parts[number] = part

    def remove(self) -> None:
        """Remove the output, or nothing if the folder has a file of another run."""
        if not self._name:
            self.find()
        self._store.delete([self._name] if self._name else map(part_name, self._parts))

    def _write(
        self,
        number: int,
        tables: Callable[[], Iterable[pyarrow.Table]],
        part: OutputPart,
        *,
        replace: bool,
    ) -> None:
        record, name = self._record(), self._name_of(number)
        settings = {**record.settings, **record.model, "versions": dict(record.versions)}
        info = PartInfo(record.run_id, part.first, part.rows, part.errors, settings, part.cut)

        def write(file: BinaryIO) -> None:
            self._format.write_tables(file, tables(), part_metadata(info))

        if isinstance(self._store, LocalStore):
            is_written = self._store.publish(name, write, replace=replace)
        else:
            data = BytesIO()
            write(data)
            if replace:
                self._store.replace(name, data.getvalue())
            is_written = replace or self._store.create(name, data.getvalue())
        if not is_written and self.part(number) is None:
            raise OutputFailed(
                f"{self._label(number)} was created by another program during the run",
                hint="move it away, then run the same command again to resume",
            )

    # tables

    def _new(self, lines: Iterable[bytes], start: int, stop: int) -> Iterator[pyarrow.Table]:
        """The rows from `start` to before `stop` as tables; at least one."""
        first = start
        for batch in bounded(lines, len):
            rows = [json.loads(line) for line in batch]
            yield self._table(rows, first)
            first += len(rows)
        assert first == stop, f"rows before {stop} are in no file"

    def _table(self, rows: list[Mapping[str, Any]], first: int) -> pyarrow.Table:
        """Rows as a table; kept columns of standard input, which lines have, are text."""
        kept = self._kept(first, first + len(rows))
        if kept is None:
            names = self._schema.keep
            kept = pyarrow.table({name: as_text(row.get(name) for row in rows) for name in names})
        dim = self._record().model.get("embedding_dim")
        return rows_table(rows, self._schema, kept, dim)

    def _merged(self, part: OutputPart, lines: Mapping[int, bytes]) -> Iterator[pyarrow.Table]:
        """The rows of a file as tables, with lines in place of some of them."""
        for first, table in self._tables(part):
            pieces, at = [], first
            for number in sorted(n for n in lines if first <= n < first + len(table)):
                row = json.loads(lines[number])
                pieces += [table.slice(at - first, number - at), self._table([row], number)]
                at = number + 1
            pieces.append(table.slice(at - first))
            yield pyarrow.concat_tables([piece.cast(table.schema) for piece in pieces])

    def _tables(
        self, part: OutputPart, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pyarrow.Table]]:
        """The rows of a file as tables, each with the number of its first row."""
        first, number = part.first, part.first // self.file_rows
        stream = open_stream(self._store, self._name_of(number))
        if stream is None:
            raise changed(self._label(number), "removed or replaced")
        with stream:
            for table in self._format.tables(stream, columns):
                yield first, table
                first += len(table)

    # names

    def _name_of(self, number: int) -> str:
        return self._name or part_name(number)

    def _label(self, number: int) -> str:
        """A file as messages name it."""
        return f"{self._store.url.rstrip('/')}/{self._name_of(number)}"

    def _sizes(self) -> dict[int, int | None]:
        """The numbers of the existing files, in order, with their sizes."""
        if self._name:
            with self._open_end(self._name, None) or nullcontext() as file:
                return {} if file is None else {0: None}
        pairs = ((PART.fullmatch(entry.name), entry.size) for entry in self._store.list())
        return dict(sorted((int(match[1]), size) for match, size in pairs if match))

    def _open_end(self, name: str, size: int | None) -> BinaryIO | None:
        """A file with its metadata, or its end in an object store; None for a missing file."""
        if isinstance(self._store, LocalStore):
            return self._store.open(name)
        assert size is not None
        end = self._store.read_end(name, END_BYTES, size) or b""
        length = int.from_bytes(end[-8:-4], "little") + 8 if end else 0
        if length > len(end):
            end = self._store.read_end(name, length, size) or b""
        return BytesIO(end)
