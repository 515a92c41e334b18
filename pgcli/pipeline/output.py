"""The output of a run under way: the rows that are saved, and where the missing ones go."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from pgcli.errors import OutputFailed
from pgcli.inputs import Inventory
from pgcli.inputs.inventory import Change
from pgcli.inputs.stamps import is_other
from pgcli.output.lines import LineFormat, json_line
from pgcli.pipeline import checks
from pgcli.pipeline.progress.tally import Tally
from pgcli.pipeline.rows import FILE_ROWS, RunRows, claimed_rows, row_schema
from pgcli.pipeline.settings import check_known_model, input_settings, run_settings, versions
from pgcli.pipeline.state.claims import remove_claims
from pgcli.pipeline.state.compare import (
    ImageChanges,
    check_saved_rows,
    compare_images,
    difference,
    file_changed,
    images_changed,
    input_changed,
    stamp_at,
)
from pgcli.pipeline.state.folder import INPUTS, State, inventory_name, recorded_inputs
from pgcli.pipeline.state.form import FormContext
from pgcli.pipeline.state.forms import error_rows, open_form, saved_rows, saved_segments
from pgcli.pipeline.state.image_stamps import ImageStamps
from pgcli.pipeline.state.open_files import Coverage, OpenFiles, Segment
from pgcli.pipeline.state.processes import Process, living, recorded_processes
from pgcli.pipeline.state.record import RunRecord, now, read_record
from pgcli.records import Answer, DecodedImage, Item
from pgcli.stores import Store

if TYPE_CHECKING:
    from pgcli.pipeline.model import EngineInfo
    from pgcli.pipeline.request import RunRequest
    from pgcli.pipeline.workers.worker import Report

#: Saves the row of this number.
SaveRow = Callable[[int, Answer], None]


def check_record(state: State, request: RunRequest) -> None:
    """Raise OutputExists if an output belongs to another run. Nothing but its record is read."""
    if state.record is None:
        return
    settings = run_settings(request)
    if request.output.rows_per_file is None:  # as the run began
        settings["rows_per_file"] = state.record.settings.get("rows_per_file")
    state.record.check_settings(settings, state.name, is_moved=request.running.moved)
    check_known_model(request, state.record, state.name)


def recorded_inventory(state: State, request: RunRequest) -> Inventory | None:
    """The input as earlier processes of the run recorded it."""
    files = [] if state.overwrite else recorded_inputs(state.store)
    if not files:
        return None
    if state.record is None:  # of a run that another process begins at this moment, or of none
        is_shared = checks.shares_output(request)
        if not (is_shared and living(state.store)):
            return None
    return Inventory.load(files, request.sources, checks.read_options(request))


def join_output(request: RunRequest, store: Store, process: Process) -> RunOutput:
    """The output of a run that another process has begun: its record and its input are there."""
    state = State(request.output.output, overwrite=False, store=store)
    assert state.record is not None, "the run has not begun"
    options = checks.read_options(request)
    inventory = Inventory.load(recorded_inputs(store), request.sources, options)
    rows = RunRows(inventory, request.question, request.input.limit)
    return RunOutput(state, request, rows, process)


class RunOutput:
    """The output of a run that can be resumed.

    `segments` are the rows that `find_saved` finds, in the output and beside it, and `coverage`
    those that are saved until now.
    """

    def __init__(self, state: State, request: RunRequest, rows: RunRows, process: Process):
        self.state, self.request, self.rows = state, request, rows
        self._process = process
        self.record = state.record or self._new_record()
        self.files = OpenFiles(state.store, process.id)
        is_lines, keep = isinstance(state.format, LineFormat), rows.inventory.kept
        self.schema = row_schema(request, keep, exact=not is_lines)
        has_columns = is_lines or not rows.is_addressable
        self.line_schema = self.schema if has_columns else replace(self.schema, keep=())
        self.context = FormContext(lambda: self.record, self.files, self.schema, rows.kept)
        self.form = open_form(request.output.output, self.context, create=True)
        self.segments: list[Segment] = []
        self.coverage = Coverage([])
        self._known_files: set[str] = set()
        self._error_rows: list[int] | None = None
        self.stamps = ImageStamps(state.store)
        #: Images of saved rows that are other files now, which are asked about again.
        self.changed: list[Change] = []

    def find_saved(self, tally: Tally) -> None:
        """Find the rows that are saved, and count them. Raises OutputExists."""
        store = self.state.store
        if self.state.record is not None:
            alive = living(store, self._process.id)
            self.segments = saved_segments(self.form, self.files, alive)
        self.coverage = Coverage(self.segments)
        self._known_files = {segment.name for segment in self.segments}
        for segment in self.segments:
            tally.errors_before.update(segment.errors)
        tally.rows_before = self.coverage.count(self.rows.total)

    def _new_record(self) -> RunRecord:
        chunk_rows, file_rows = self._sizes()
        return RunRecord(
            token_hex(8),
            run_settings(self.request),
            input_settings(self.request),
            chunk_rows=chunk_rows,
            file_rows=file_rows,
            versions=versions(),
            arguments=self.request.arguments,
        )

    def _sizes(self) -> tuple[int, int]:
        """The rows in a chunk and in a file of a new output."""
        request, total = self.request, self.rows.total
        shard, rows_per_file = checks.shard_of(request), request.output.rows_per_file
        if total is None:
            return rows_per_file or FILE_ROWS, rows_per_file or FILE_ROWS
        if shard is not None:
            rounds = max(1, -(-total // (FILE_ROWS * shard.count)))
            rows = rows_per_file or max(1, -(-total // (rounds * shard.count)))
            return rows, rows
        rows = claimed_rows(total)
        if checks.shares_output(request) or self.state.is_stored:
            return rows_per_file or rows, rows_per_file or rows
        if rows_per_file:
            return min(rows, rows_per_file), rows_per_file
        return rows, rows * (FILE_ROWS // rows)

    # what is saved

    def missing(self) -> list[range]:
        """The rows that are neither in the output nor beside it."""
        total = self.rows.total
        return [] if total is None else list(self.coverage.missing(0, total))

    @property
    def is_complete(self) -> bool:
        """Whether every row of the input is in the output."""
        total = self.rows.total
        if total is None or self.state.record is None:
            return False
        return self._final().count(total) >= total

    def _final(self) -> Coverage:
        """The rows that were in the output itself when it was opened."""
        return Coverage(segment for segment in self.segments if not segment.name)

    def total(self) -> int:
        """The number of rows that the output has when it is complete."""
        total, end = self.rows.total, self.coverage.end_of(0)
        return end if total is None else max(total, end)  # more than --limit may be saved

    def saved(self) -> Iterator[tuple[int, Item, Answer]]:
        """The rows that were saved when the output was opened, with their items, in order."""
        rows = saved_rows(self.form, self.files, self.segments)
        items = (
            item
            for first, end in Coverage(self.segments).ranges
            for item in self.rows.item_of_each(range(first, end))
        )
        for (number, row), item in zip(rows, items, strict=True):
            yield number, item, self.schema.answer(row)

    def rows_of(self, segment: Segment, start: int) -> Iterator[tuple[int, Item, Answer]]:
        """The rows of an open file from one on, with their items."""
        numbers = range(start, segment.end)
        items, rows = self.rows.item_of_each(numbers), self.files.rows(segment, start)
        for number, item, row in zip(numbers, items, rows, strict=True):
            yield number, item, self.line_schema.answer(row)

    # comparison with the input

    def compare(self, known: Inventory | None) -> int:
        """Compare the input with the recorded one and with saved rows.

        Returns the number of saved rows whose images are not in the input any more. Raises
        OutputExists for an input that has changed.
        """
        inventory, running = self.rows.inventory, self.request.running
        gone, is_moved = 0, running.moved
        if known is not None or inventory.total is not None:
            stamps = self._stamped
            listed = [*inventory.each_change(self._has_answers, stamps, moved=is_moved)]
            for change in listed:
                if not change.is_image:
                    raise file_changed(self.state.name, change)
            images = ImageChanges()  # else `unsaved` compares them
            if self.rows.is_addressable:
                images = compare_images(inventory, stamps, self._has_answers, is_moved=is_moved)
            self.changed = [*listed, *images.changed]
            can_retry = self.rows.is_addressable and not listed
            if self.changed and not (running.retry_changed and can_retry):
                raise images_changed(
                    self.state.name, self.changed, inventory.total, can_retry=can_retry
                )
            for index, stamp in images.touched.items():
                self.stamps.note(index, stamp)
            gone = (inventory.gone + images.gone) * (self.rows.per_item or 1)
        if self.coverage.count() and self.rows.is_addressable:
            check_saved_rows(self, is_moved=is_moved)
        return gone

    def changed_versions(self) -> list[str]:
        """`name old -> new` of each library that is not as when the run was recorded."""
        before = self.record.versions
        return [
            f"{name} {before[name]} -> {version}"
            for name, version in versions().items()
            if before.get(name, version) != version
        ]

    def _has_answers(self, items: range) -> bool:
        """Whether rows of these items are saved that are not error rows."""
        per_item = self.rows.per_item or 1
        start, stop = items.start * per_item, items.stop * per_item
        saved = self.coverage.count(stop) - self.coverage.count(start)
        if saved and self._error_rows is None:
            self._error_rows = sorted(error_rows(self.form, self.files, self.segments))
        errors = self._error_rows or []
        return saved > bisect_left(errors, stop) - bisect_left(errors, start)

    def unsaved(self, items: Iterator[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """Those of all items that have rows which are not saved, with these rows only.

        Raises OutputExists for an item that is not that of its saved rows.
        """
        known = saved_rows(self.form, self.files, self.segments)
        images, stamps = ImageChanges(), self._stamped
        for first, item in items:
            saved, is_answered = self.coverage.end_of(first), False
            for number, prompt in enumerate(item.prompts, first):
                if number < saved:
                    is_answered |= self._check_same(next(known), item, prompt)
            stamp = stamp_at(stamps, item.index)
            if is_answered and stamp[0] and item.path and is_other(item.path, stamp):
                is_moved = self.request.running.moved
                images.add(item.index, item.image, item.path, stamp, is_moved=is_moved)
            if saved < first + len(item.prompts):
                self._check_images(images)
                yield saved, replace(item, prompts=item.prompts[saved - first :])
        self._check_images(images)

    def _check_same(self, saved: tuple[int, Mapping[str, Any]], item: Item, prompt: str) -> bool:
        """Raise OutputExists for a row of another item; return whether it is answered."""
        number, row = saved
        if change := difference(row, item, prompt):
            raise input_changed(self.state.name, number, change)
        return row.get("error") is None

    def _check_images(self, images: ImageChanges) -> None:
        """Raise OutputExists for changed images of standard input."""
        if images.changed:
            can_retry = self.rows.per_item is not None
            raise images_changed(self.state.name, images.changed, None, can_retry=can_retry)

    def rows_of_changed(self) -> list[int]:
        """The rows of changed images that are answered."""
        per_item, end = self.rows.per_item or 1, self.total()
        rows = (
            row
            for change in self.changed
            for row in range(change.items.start * per_item, change.items.stop * per_item)
        )
        errors = {*error_rows(self.form, self.files, self.form.segments())}
        return sorted(row for row in rows if row < end and row not in errors)

    def note_image(self, image: DecodedImage) -> None:
        """Note which file an image was, before its rows are saved.

        Of a changed image some rows may be saved, and are asked again only later.
        """
        index = image.item.index
        if not (self.request.running.retry_changed and stamp_at(self._stamped, index)[0]):
            self.stamps.note(index, image.stamp)

    @cached_property
    def _stamped(self) -> np.ndarray:
        """The stamps before this command."""
        return self.stamps.read()

    # writing

    def begin(self) -> None:
        """Make the output this run's: its record and its input are written before the first row."""
        if self.state.record is None:
            if self.state.overwrite:
                self.state.form_of(self.state.replaced or self.record).remove()
            self.record = self.state.begin(replace(self.record, begun=now()))
        self.state.start_log(self.request.arguments)
        self._store_inventory()

    def name_model(self, info: EngineInfo) -> None:
        """Have the record name the model before there are rows of it, if it does not."""
        record = read_record(self.state.store) or self.record
        self.record = replace(record, model={**info.model, **record.model})
        if not record.model:
            self.state.update(self.record)

    def note_model(self, info: EngineInfo | None) -> None:
        """Write what is known of the model, and of this command, into the record."""
        if info is None:
            return
        record = self.record.resumed_by(
            replace(
                self.record,
                settings=run_settings(self.request),
                input=input_settings(self.request),
                model=info.model,
                versions=versions(),
                arguments=self.request.arguments,
            )
        )
        if record != self.record:
            self.record = record
            self.state.update(record)

    def _store_inventory(self) -> None:
        """Write the generations of the input that are not recorded yet."""
        inventory, store = self.rows.inventory, self.state.store
        if inventory.total is None:
            return
        recorded = {entry.name for entry in store.list(INPUTS)}
        for number in range(len(inventory.generations)):
            if (name := inventory_name(number)) not in recorded:
                store.create(name, inventory.to_arrow(number))

    def take_saved(self) -> None:
        """Put the rows that earlier processes left in open files into the output."""
        for segment in self.segments:
            if segment.name:
                self.form.take(segment)

    def line(self, row: Answer) -> bytes:
        """A row as it is saved."""
        return json_line(row, self.line_schema).encode()

    @contextmanager
    def writing(self) -> Iterator[SaveRow]:
        """A block in which rows are saved one after the other, by what is yielded."""

        def save(number: int, row: Answer) -> None:
            self.form.save(number, self.line(row))
            self.coverage.add(number, number + 1)

        try:
            yield save
        finally:
            self.form.close()

    def add(self, report: Report) -> list[Segment]:
        """The open files of a chunk that were not known before; their rows count as saved."""
        segments = [*report.remains, *report.segments]
        new = [segment for segment in segments if segment.name not in self._known_files]
        for segment in new:
            self._known_files.add(segment.name)
            self.coverage.add(segment.first, segment.end)
        return new

    def finish(self) -> None:
        """Complete the output: all of its rows are saved."""
        if self.record.begun:
            self.form.finish(self.total())
            self.remove_remains(self.total())

    def remove_remains(self, end: int | None = None) -> None:
        """Remove what killed processes left beside an output that is complete up to row `end`.

        By default to the end of its rows. Files with rows after it stay: they are beyond --limit.
        """
        store, end = self.state.store, self._final().end_of(0) if end is None else end
        alive = living(store, self._process.id)
        beyond = {segment.name for segment in self.segments if segment.end > end}
        with suppress(OutputFailed):
            self.files.remove(name for name in self.files.names(alive) if name not in beyond)
            remove_claims(store)

    def remove_claims(self, segments: list[Segment]) -> None:
        """Remove the claims if the output is complete with these rows, and all processes know it.

        One that does not know it would take a chunk without a claim for one to compute.
        """
        total, store, process = self.rows.total or 0, self.state.store, self._process
        if Coverage(segments).count(total) < total:
            return
        with suppress(OutputFailed):
            process.note(sees_end=True)
            process.write()
            peers = recorded_processes(store, process.id)
            if not any(peer.is_alive and not peer.values.get("sees_end") for peer in peers):
                remove_claims(store)

    def close(self) -> None:
        """Flush and close the output."""
        self.stamps.close()
        with suppress(OutputFailed):
            self.form.close()
