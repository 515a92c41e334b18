"""The output of a run in progress: saved rows, missing rows, and the comparison with the input."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from pgcli.errors import OutputFailed, OutputInUse
from pgcli.inputs import Inventory
from pgcli.inputs.inventory import Change
from pgcli.inputs.stamps import Stamp, is_other
from pgcli.output.lines import LineFormat
from pgcli.records import Answer, Item
from pgcli.run.progress.tally import Tally
from pgcli.run.rows import FILE_ROWS, RunRows, range_rows, row_schema, split_rows
from pgcli.run.settings import check_known_model, input_settings, run_settings, versions
from pgcli.run.state.compare import (
    ImageChanges,
    ImageStamps,
    check_each_row,
    check_saved_rows,
    compare_images,
    files_changed,
    input_changed,
    input_difference,
    stamp_at,
)
from pgcli.run.state.folder import INPUTS, State, inventory_name, recorded_inputs, shard_stores
from pgcli.run.state.lines import OutputPart, edited, errors_in, merge_ranges
from pgcli.run.state.parts import COMPARED
from pgcli.run.state.record import SOURCES, RunRecord, now, other_run, read_record, state_lacks
from pgcli.run.state.saved import open_saved
from pgcli.stores import Store

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest
    from pgcli.run.workers.work import EngineInfo

#: Up to so many saved rows are all compared with the input when a run resumes, else a sample.
MAX_COMPARED = 10_000
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
        self._error_rows: list[int] | None = None
        self.stamps = ImageStamps(state.owner.store)
        #: Changed images of saved rows, which are retried.
        self.changed: list[Change] = []

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
        settings = run_settings(self.request)
        # shards that start at the same time get the same id, also without exclusive puts
        run_id = token_hex(8) if self.shard is None else sha256(repr(settings).encode()).hexdigest()
        return RunRecord(
            run_id[:16],
            settings,
            input_settings(self.request),
            file_rows=self._file_rows(),
            versions=versions(),
        )

    def _file_rows(self) -> int:
        """The rows in a file of a new output."""
        request, total = self.request, self.rows.total
        if request.output.rows_per_file or total is None:
            return request.output.rows_per_file or FILE_ROWS
        if self.shard is not None:
            rounds = max(1, -(-total // (FILE_ROWS * self.shard.count)))
            return max(1, -(-total // (rounds * self.shard.count)))
        # a file for a store is built in memory, and its log too
        return range_rows(total) if self.state.is_stored else FILE_ROWS

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

    # comparison with the input

    def compare(self, known: Inventory | None) -> int:
        """Compare the input with the recorded one and with saved rows.

        Returns the number of saved rows of images that were removed from the input. Raises
        OutputExists for a changed input.
        """
        inventory, running = self.rows.inventory, self.request.running
        gone = 0
        if known is not None or inventory.total is not None:
            stamps = self._stamped
            listed = [*inventory.each_change(self._has_answers, stamps)]
            for change in listed:
                if not change.is_image:
                    raise files_changed(self.state.name, [change], None, can_retry=False)
            images = ImageChanges()  # else `unsaved` compares them
            if self.rows.is_addressable:
                images = compare_images(inventory, stamps, self._has_answers)
            self.changed = [*listed, *images.changed]
            can_retry = self.rows.is_addressable and not listed
            if self.changed and not (running.retry_changed and can_retry):
                raise files_changed(
                    self.state.name, self.changed, inventory.total, can_retry=can_retry
                )
            for index, stamp in images.touched.items():
                self.stamps.note(index, stamp)
            gone = (inventory.gone + images.gone) * (self.rows.per_item or 1)
            if gone and (moved := self.record.moved_sources(run_settings(self.request))):
                raise other_run(self.state.name, "other images", [moved])
        if self.before and self.rows.is_addressable:
            self._check_saved(known)
        return gone

    def _check_saved(self, known: Inventory | None) -> None:
        """Compare saved rows with the input: up to MAX_COMPARED all of them, else a sample."""
        per_item, end = self.rows.per_item or 1, self.before[-1].stop
        if end > (rows := (self.rows.inventory.total or 0) * per_item):
            raise edited(self.state.name, rows)
        is_recorded = known is not None and end <= (known.total or 0) * per_item
        if "-" not in self.request.sources and not is_recorded:
            number = 0 if known is None else len(known.generations)
            raise state_lacks(self.state.store, inventory_name(number))
        if sum(map(len, self.before)) <= MAX_COMPARED and not self.state.is_stored:
            check_each_row(self.saved.rows(columns=COMPARED), self.rows, self.state.name)
        else:
            check_saved_rows(self.saved.probes(), self.rows, self.state.name)

    def changed_versions(self) -> list[str]:
        """`name old -> new` for each library with another version than in the record."""
        before = self.record.versions
        return [
            f"{name} {before[name]} -> {version}"
            for name, version in versions().items()
            if before.get(name, version) != version
        ]

    def _has_answers(self, items: range) -> bool:
        """Whether answered rows of these items are saved."""
        per_item = self.rows.per_item or 1
        start, stop = items.start * per_item, items.stop * per_item
        saved = count_rows(self.before, start, stop)
        if not (saved or self.has(start)):
            return True  # another shard may have answered them
        if saved and self._error_rows is None:
            self._error_rows = [number for number, _ in self.saved.error_rows()]
        errors = self._error_rows or []
        return saved > bisect_left(errors, stop) - bisect_left(errors, start)

    def unsaved(self, items: Iterator[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """The items with missing rows, each with the prompts of these rows only.

        Raises OutputExists if an item differs from its saved rows.
        """
        known = self.saved.rows()
        images, stamps = ImageChanges(), self._stamped
        for first, item in items:
            saved, is_answered = end_of(self.before, first), False
            for number, prompt in enumerate(item.prompts, first):
                if number < saved:
                    is_answered |= self._check_same(next(known), item, prompt)
            stamp = stamp_at(stamps, item.index)
            if is_answered and stamp[0] and item.path and is_other(item.path, stamp):
                images.add(item.index, item.image, item.path, stamp)
            if saved < first + len(item.prompts):
                self._check_images(images)
                yield saved, replace(item, prompts=item.prompts[saved - first :])
        self._check_images(images)

    def _check_same(self, saved: tuple[int, Mapping[str, Any]], item: Item, prompt: str) -> bool:
        """Return whether a saved row is answered. Raises OutputExists if its item differs."""
        number, row = saved
        if change := input_difference(row, item, prompt):
            raise input_changed(self.state.name, number, change)
        return row.get("error") is None

    def _check_images(self, images: ImageChanges) -> None:
        """Raise OutputExists for changed images of standard input."""
        if images.changed:
            can_retry = self.rows.per_item is not None
            raise files_changed(self.state.name, images.changed, None, can_retry=can_retry)

    def rows_of_changed(self) -> list[int]:
        """The answered rows of changed images."""
        if not self.changed:
            return []
        per_item, end = self.rows.per_item or 1, self.total()
        rows = (
            row
            for change in self.changed
            for row in range(change.items.start * per_item, change.items.stop * per_item)
        )
        failed = {number for number, _ in self.saved.error_rows()}
        return sorted(row for row in rows if row < end and row not in failed)

    def note_stamp(self, index: int, stamp: Stamp | None) -> None:
        """Note the stamp of an image before its rows are saved.

        A changed image keeps its old stamp: its saved rows are retried later.
        """
        if stamp is None:
            return
        if not (self.request.running.retry_changed and stamp_at(self._stamped, index)[0]):
            self.stamps.note(index, stamp)

    @cached_property
    def _stamped(self) -> np.ndarray:
        """The stamps from before this command, of all shards."""
        return ImageStamps.merged([self.state.store, *shard_stores(self.state.store)])

    # writing

    def begin(self) -> None:
        """Write the record and the input of the run, before its first row."""
        is_new, own = self.state.record is None, self.record
        if is_new:
            self.record = self.state.begin(replace(own, begun=now()))
        record_inventory(self.rows.inventory, self.state.store)
        if is_new and self.shard is not None:
            self._check_first_shard(own)
        self.saved.begin()

    def _check_first_shard(self, own: RunRecord) -> None:
        """Raise if another shard just began the run with another shard count or input."""
        self.record.check_settings(own.settings, self.state.name)
        is_same = recorded_inputs(self.state.store) == [self.rows.inventory.to_arrow(0)]
        if self.record.file_rows != own.file_rows or not is_same:
            raise OutputInUse(
                f"another shard began {self.state.name} at this moment, with another number of "
                "shards or another input",
                hint="run the same command again",
            )

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
        self.stamps.close()
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
