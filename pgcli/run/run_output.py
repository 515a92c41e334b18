"""The output of a run in progress: a resumable one, or a stream of rows."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from pgcli.errors import OutputFailed, OutputInUse
from pgcli.inputs import Inventory
from pgcli.output.lines import LineFormat, parse_row, text_lines
from pgcli.records import Answer, Item
from pgcli.rows import RowSchema, json_text
from pgcli.run import events
from pgcli.run.input_rows import (
    FILE_ROWS,
    PAGE_FILE_ROWS,
    RunRows,
    range_rows,
    row_schema,
    split_rows,
)
from pgcli.run.progress import Tally
from pgcli.run.state.folder import INPUTS, State, inventory_name, shard_stores
from pgcli.run.state.lines import OutputPart, RowFile, errors_in, merge_ranges
from pgcli.run.state.record import (
    SOURCES,
    RunRecord,
    check_known_model,
    input_settings,
    now,
    other_run,
    read_record,
    run_settings,
    versions,
)
from pgcli.run.state.saved import open_saved
from pgcli.stores import Store
from pgcli.stores.writing import make_folder, wrap_write_errors

if TYPE_CHECKING:
    from pgcli.run.progress import EngineInfo
    from pgcli.run.request import RunRequest

#: Saves the row of this number, as its line.
SaveLine = Callable[[int, bytes], None]


def check_record(state: State, request: RunRequest) -> None:
    """Raise OutputExists if an output belongs to another run, by its record alone."""
    if state.record is None:
        return
    settings = run_settings(request)
    if request.output.rows_per_file is None:  # as the run began
        settings["rows_per_file"] = state.record.settings.get("rows_per_file")
    state.record.check_settings(settings, state.name)
    if state.shard is not None and (change := state.record.moved_sources(settings)):
        # it may have no rows of the others to compare
        raise other_run(state.name, "other images", [change])
    check_known_model(request, state.record, state.name)


def record_inventory(inventory: Inventory, store: Store) -> None:
    """Record new generations of the input; standard input is not recorded."""
    if inventory.total is None:
        return
    recorded = {entry.name for entry in store.list(f"{INPUTS}/")}
    for number in range(len(inventory.generations)):
        if (name := inventory_name(number)) not in recorded:
            store.create(name, inventory.to_arrow(number))


class RunOutput:
    """A resumable output, or the files of it that belong to a shard.

    `saved` are its rows. `before` are the ranges of rows that were saved when it was opened.
    """

    def __init__(self, state: State, request: RunRequest, rows: RunRows):
        self.state, self.request, self.rows = state, request, rows
        self.shard = state.shard
        self.record = state.record or self._new_record()
        is_lines, keep = isinstance(state.format, LineFormat), rows.inventory.kept
        if not is_lines:
            rows.inventory.check_kept()
        self.schema = row_schema(request, keep, exact=not is_lines)
        has_columns = is_lines or not rows.is_addressable
        self.line_schema = self.schema if has_columns else replace(self.schema, keep=())
        logs = [state.owner.store, *([] if self.shard else shard_stores(state.store))]
        self.saved = open_saved(
            request.output.output,
            lambda: self.record,
            logs,
            schema=self.schema,
            kept=rows.kept,
            per_item=rows.per_item if rows.is_addressable else None,
            create=True,
        )
        self.file_rows = self.saved.file_rows
        self.before: list[range] = []

    def find_saved(self, tally: Tally) -> None:
        """Find and count the saved rows. Raises OutputExists."""
        if self.state.record is not None:
            self.saved.find()
        self.before = self.saved.ranges()
        own, total = self._own_parts(), self.rows.total
        for part in own:
            tally.errors_before.update(part.errors)
        tally.rows_before = count_rows([range(p.first, p.end) for p in own], 0, total)

    def _own_parts(self) -> list[OutputPart]:
        """The saved parts that this command writes, in order."""
        return [part for _, part in self.saved.each_part(self.has)]

    def has(self, row: int) -> bool:
        """Whether this command writes the file with a row."""
        return self.shard is None or self.shard.has(row // self.file_rows)

    def _new_record(self) -> RunRecord:
        settings, file_rows = run_settings(self.request), self._file_rows()
        run_id = token_hex(8)
        if self.shard is not None:  # shards that start at the same time make the same run
            facts = repr((settings, file_rows)).encode() + self.rows.inventory.to_arrow(0)
            run_id = sha256(facts).hexdigest()[:16]
        more = input_settings(self.request)
        return RunRecord(run_id, settings, more, file_rows=file_rows, versions=versions())

    def _file_rows(self) -> int:
        """The rows in a file of a new output."""
        request, total = self.request, self.rows.total
        most = PAGE_FILE_ROWS if request.question.pages else FILE_ROWS
        if request.output.rows_per_file or total is None:
            return request.output.rows_per_file or most
        if self.shard is not None:
            rounds = max(1, -(-total // (most * self.shard.count)))
            return max(1, -(-total // (rounds * self.shard.count)))
        # a file for a store is built in memory, and its log too
        return range_rows(total) if self.state.is_stored else most

    # saved rows

    def missing(self) -> list[range]:
        """The rows that are not saved."""
        return self._others(self.saved.ranges())

    @property
    def is_complete(self) -> bool:
        """Whether the output itself, without logs, has all rows of the input or shard."""
        if self.rows.total is None or self.state.record is None:
            return False
        parts = self.saved.parts.values()
        return not self._others([range(part.first, part.log_first) for part in parts])

    def _others(self, ranges: Iterable[range]) -> list[range]:
        """The rows of the input, or of this shard, that are not in these ranges."""
        total, at, others = self.rows.total or 0, 0, list[range]()
        for rows in (*ranges, range(total, total)):
            gap = range(at, min(rows.start, total))
            pieces = [gap] if self.shard is None else split_rows(gap, self.file_rows)
            others += [piece for piece in pieces if piece and self.has(piece.start)]
            at = max(at, rows.stop)
        return others

    def total(self) -> int:
        """The row count of the complete output."""
        total = self.rows.total
        end = end_of(self.saved.ranges(), 0)
        return end if total is None else max(total, end)  # more than --limit may be saved

    def saved_answers(self) -> Iterator[tuple[int, Item, Answer]]:
        """The rows of this command's parts that were saved when the output was opened, in order.

        Each comes with its item.
        """
        items = (
            item
            for rows in merge_ranges(range(p.first, p.end) for p in self._own_parts())
            for item in self.rows.item_of_each(rows)
        )
        for (number, row), item in zip(self.saved.rows(self.has), items, strict=True):
            yield number, item, self.schema.answer(row)

    # writing

    def begin(self) -> None:
        """Write the record and the input of the run, before its first row."""
        if self.state.record is None:
            own = self.record
            self.record = self.state.begin(replace(own, begun=now()))
            if self.record.run_id != own.run_id:
                raise OutputInUse(
                    f"another shard began {self.state.name} at this moment, with other settings, "
                    "another number of shards or another input",
                    hint="run the same command again",
                )
        record_inventory(self.rows.inventory, self.state.store)
        self.saved.begin()

    def note_command(self, info: EngineInfo | None = None) -> None:
        """Write the sources of this command into the record, and its loaded model.

        Shards share the record: the first shard that loads the model writes it.
        """
        if self.state.record is None or (info is None and self.shard is not None):
            return
        record = read_record(self.state.store) or self.record
        if self.shard is not None:
            assert info is not None
            later = record if record.model else replace(record, model=info.model)
        else:
            settings = {**record.settings, SOURCES: run_settings(self.request)[SOURCES]}
            later = replace(record, settings=settings, input=input_settings(self.request))
            if info is not None:
                model = {**record.model, **info.model}
                later = replace(later, model=model, versions=versions())
        if later != record:
            self.state.update(later)
        self.record = later

    def save(self, number: int, line: bytes) -> None:
        """Save the next row. Raises OutputFailed."""
        self.saved.save(number, line)

    def finish(self) -> None:
        """Complete the output. Raises AssertionError if a row is missing."""
        if not self.record.begun:
            return
        if missing := self.missing():
            raise AssertionError(f"rows {missing[0].start} to {missing[0].stop - 1} were not saved")
        self.saved.finish(self.total())

    def close(self, tally: Tally) -> None:
        """Flush the output, and uncount rows that its store refused."""
        with suppress(OutputFailed):
            self.saved.close()
        lines = self.saved.unsaved()
        tally.rows -= len(lines)
        tally.errors -= errors_in(lines)


def end_of(ranges: Sequence[range], row: int) -> int:
    """The first row from this one on that is in none of the merged ranges."""
    at = bisect_right(ranges, row, key=lambda rows: rows.start) - 1
    return max(row, ranges[at].stop) if at >= 0 else row


def count_rows(ranges: Sequence[range], start: int, stop: int | None) -> int:
    """The number of rows of ranges from `start` on, before `stop`."""
    ends = ((rows, rows.stop if stop is None else min(rows.stop, stop)) for rows in ranges)
    return sum(max(0, end - max(rows.start, start)) for rows, end in ends)


@contextmanager
def open_row_stream(
    request: RunRequest, schema: RowSchema, on_event: events.OnEvent
) -> Iterator[SaveLine]:
    """Yield what writes rows. Raises OutputFailed.

    Rows are text on a terminal and in a file, with their prompts if these differ; otherwise they
    are JSON lines.
    """
    output, templates = request.output, request.question.templates
    with_prompt = templates is None or len(templates) > 1

    def as_text(line: bytes) -> bytes:
        return text_lines(schema.answer(parse_row(line) or {}), with_prompt=with_prompt).encode()

    if output.output != "-":
        with text_file(Path(output.output), overwrite=output.overwrite) as write:
            yield lambda number, line: write(as_text(line))
        return
    stream = sys.stdout.buffer
    is_terminal = stream.isatty()
    is_text = output.format == "text" or (output.format == "auto" and is_terminal)

    def save(number: int, line: bytes) -> None:
        if is_text:
            line = as_text(line)
        elif is_terminal:
            line = f"{json_text(parse_row(line), ascii_only=True)}\n".encode()
        with wrap_write_errors("standard output"):
            stream.write(line)
            stream.flush()

    yield save


@contextmanager
def text_file(path: Path, *, overwrite: bool) -> Iterator[Callable[[bytes], None]]:
    """Create or truncate a text file, and yield what appends to it."""
    with wrap_write_errors(path):
        make_folder(path.parent)
        if overwrite and path.is_symlink():
            path.unlink()  # keep the file that the link points to
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if overwrite else os.O_EXCL)
        file = RowFile(os.open(path, flags, 0o666), path)
    with closing(file):
        yield file.append
