"""The Parquet files of an output: a folder of parts, or a single file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO

import pyarrow

from pgcli.arrow import as_text
from pgcli.errors import OutputExists, OutputFailed
from pgcli.output import PART, part_name
from pgcli.output.schema import rows_of_table, rows_table
from pgcli.output.tables import PartInfo, TableFormat, bounded, part_metadata
from pgcli.rows import RowSchema
from pgcli.run.state.lines import (
    ALL_ROWS,
    OutputPart,
    changed,
    errors_in,
    is_cut_answer,
    open_stream,
)
from pgcli.run.state.record import RunRecord
from pgcli.stores import LocalStore, Store

#: The bytes at the end of a Parquet file that usually contain its metadata.
END_BYTES = 2**16
THREADS = 32  # that read the ends of files at one time
MAX_PROBED_FILES = 16
#: The columns of saved rows that are compared with the input.
COMPARED = ("index", "id", "image", "text", "prompt", "width", "height", "error", "boxes")

#: The kept columns of the rows from one to before another; None where lines have them.
ReadKept = Callable[[int, int], "pyarrow.Table | None"]


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

    def probes(self) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """A sample of the rows that `find` found, with their numbers."""
        parts = [part for part in self._parts.values() if part.rows]
        for part in parts[:: max(1, len(parts) // MAX_PROBED_FILES)]:
            first, table = next(self._tables(part, COMPARED))
            yield first, table.slice(0, 1).to_pylist()[0]

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
