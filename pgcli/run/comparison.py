"""Comparison of saved rows and images with the input, on resume and by `check`; retries of rows."""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pgcli.boxes import location_values, with_locations
from pgcli.errors import OutputExists
from pgcli.inputs.file_table import Stamp, is_other, no_stamps, read_stamp
from pgcli.inputs.inventory import Change, Inventory
from pgcli.inputs.paths import display_path
from pgcli.records import Item
from pgcli.rows import prompt_of, task_of
from pgcli.run.input_rows import RunRows
from pgcli.run.run_output import RunOutput, SaveLine, count_rows, end_of
from pgcli.run.state.folder import RETRIED, inventory_name, shard_stores
from pgcli.run.state.lines import Log, edited, errors_in, is_row, merge_ranges, open_stream
from pgcli.run.state.record import other_run, run_settings, state_lacks
from pgcli.stores import LocalStore, Store
from pgcli.text import count, encodable, listed, shown

#: When a run resumes, so many rows are all compared with the input; of more rows, a sample.
MAX_COMPARED, SAMPLE_ROWS, SAMPLE_FILES = 10_000, 100, 16
#: The columns of saved rows that are compared with the input.
COMPARED = ("index", "id", "image", "text", "prompt", "width", "height", "error", "boxes")
Row = Mapping[str, Any]
STAMPS = "inputs/images"
STAMP = struct.Struct("=3q")
STAMP_BYTES = STAMP.size


class InputComparison:
    """The comparison of the input with the recorded one and with the saved rows of an output."""

    def __init__(self, output: RunOutput):
        self.output, self.stamps = output, ImageStamps(output.state.owner.store)
        #: Changed images of saved rows, which are retried.
        self.changed: list[Change] = []
        self._error_rows: list[int] | None = None

    def compare(self, known: Inventory | None) -> int:
        """Compare the input with the recorded one and with saved rows.

        Returns the number of saved rows of images that were removed from the input. Raises
        OutputExists for a changed input.
        """
        output, name = self.output, self.output.state.name
        inventory, gone = output.rows.inventory, 0
        if known is not None or inventory.total is not None:
            listed = [*inventory.each_change(self._has_answers, self._stamped)]
            for change in listed:
                if not change.is_image:
                    raise files_changed(name, [change], None, can_retry=False)
            images = ImageChanges()  # else `unsaved` compares them
            if output.rows.is_addressable:
                images = compare_images(inventory, self._stamped, self._has_answers)
            self.changed = [*listed, *images.changed]
            can_retry = output.rows.is_addressable and not listed
            if self.changed and not (output.request.running.retry_changed and can_retry):
                raise files_changed(name, self.changed, inventory.total, can_retry=can_retry)
            for index, stamp in images.touched.items():
                self.stamps.note(index, stamp)
            gone = (inventory.gone + images.gone) * (output.rows.per_item or 1)
            if gone and (moved := output.record.moved_sources(run_settings(output.request))):
                raise other_run(name, "other images", [moved])
        if output.before and output.rows.is_addressable:
            self._check_saved(known)
        return gone

    def _check_saved(self, known: Inventory | None) -> None:
        """Compare saved rows with the input, a sample of them if there are many."""
        output, state = self.output, self.output.state
        per_item, end = output.rows.per_item or 1, output.before[-1].stop
        if end > (rows := (output.rows.inventory.total or 0) * per_item):
            raise edited(state.name, rows)
        is_recorded = known is not None and end <= (known.total or 0) * per_item
        if "-" not in output.request.sources and not is_recorded:
            number = 0 if known is None else len(known.generations)
            raise state_lacks(state.store, inventory_name(number))
        firsts = [part.first for part in output.saved.parts.values() if part.rows]
        sample = set(sorted(firsts)[:: -(-len(firsts) // SAMPLE_FILES)])
        total = sum(map(len, output.before))
        every = 1 if total <= MAX_COMPARED else -(-total // SAMPLE_ROWS)
        saved = output.saved.rows(sample.__contains__, COMPARED, every)
        check_saved_rows(saved, output.rows, state.name)

    def _has_answers(self, items: range) -> bool:
        """Whether answered rows of these items are saved."""
        per_item = self.output.rows.per_item or 1
        start, stop = items.start * per_item, items.stop * per_item
        saved = count_rows(self.output.before, start, stop)
        if not (saved or self.output.has(start)):
            return True  # another shard may have answered them
        if saved and self._error_rows is None:
            self._error_rows = [number for number, _ in self.output.saved.error_rows()]
        errors = self._error_rows or []
        return saved > bisect_left(errors, stop) - bisect_left(errors, start)

    def unsaved(self, items: Iterator[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """The items with missing rows, each with the prompts of these rows only.

        Raises OutputExists if an item differs from its saved rows.
        """
        known = self.output.saved.rows()
        images, stamps = ImageChanges(), self._stamped
        for first, item in items:
            saved, is_answered = end_of(self.output.before, first), False
            for number, prompt in enumerate(item.prompts, first):
                if number < saved:
                    row = next(known)[1]
                    if change := input_difference(row, item, prompt):
                        raise input_changed(self.output.state.name, number, change)
                    is_answered |= row.get("error") is None
            stamp = stamp_at(stamps, item.index)
            if is_answered and stamp[0] and item.path and is_other(item.path, stamp):
                images.add(item.index, item.image, item.path, stamp)
            is_unsaved = saved < first + len(item.prompts)
            if is_unsaved and not images.changed:
                yield saved, replace(item, prompts=item.prompts[saved - first :])
            elif is_unsaved:
                break
        if images.changed:
            can_retry = self.output.rows.per_item is not None
            raise files_changed(self.output.state.name, images.changed, None, can_retry=can_retry)

    def rows_of_changed(self) -> list[int]:
        """The answered rows of changed images."""
        if not self.changed:
            return []
        per_item, end = self.output.rows.per_item or 1, self.output.total()
        rows = (
            row
            for change in self.changed
            for row in range(change.items.start * per_item, change.items.stop * per_item)
        )
        failed = {number for number, _ in self.output.saved.error_rows()}
        return sorted(row for row in rows if row < end and row not in failed)

    def note_stamp(self, index: int, stamp: Stamp | None) -> None:
        """Note the stamp of an image before its rows are saved.

        A changed image keeps its old stamp: its saved rows are retried later.
        """
        if stamp is None:
            return
        if not (self.output.request.running.retry_changed and stamp_at(self._stamped, index)[0]):
            self.stamps.note(index, stamp)

    @cached_property
    def _stamped(self) -> np.ndarray:
        """The stamps from before this command, of all shards."""
        return ImageStamps.merged([self.output.state.store, *shard_stores(self.output.state.store)])


def check_saved_rows(saved: Iterable[tuple[int, Row]], rows: RunRows, output: str) -> None:
    """Raise OutputExists if one of the saved rows, in order, differs from the input."""

    def read_from(number: int, *, images: bool) -> Iterator[tuple[Item, str]]:
        items = rows.numbered(range(number, rows.total or 0), images=images)
        return ((item, prompt) for _, item in items for prompt in item.prompts)

    # the name of an image in a table may depend on its bytes, which are read only if needed
    images, expected, at = False, read_from(0, images=False), 0
    for number, row in saved:
        if number != at:
            expected = read_from(number, images=images)
        at = number + 1
        if (pair := next(expected, None)) is None:
            return  # the rest is beyond --limit
        if not images and input_difference(row, *pair):
            images, expected = True, read_from(number, images=True)
            pair = next(expected)
        if change := input_difference(row, *pair):
            raise input_changed(output, number, change)


def input_difference(row: Row, item: Item, prompt: str) -> str:
    """How the input differs from a row, by index, id, image and prompt; empty if it does not.

    Images are compared by their file names: a data set may be moved to another folder.
    """
    if row.get("index") != item.index or (row.get("id") != encodable(item.id) and "id" in row):
        return mismatch("id", row.get("id"), item.id)
    if "image" in row and file_name(row["image"]) != file_name(encodable(item.image)):
        return mismatch("image", row["image"], item.image)
    if not is_prompt(row, item, prompt):
        return mismatch("prompt", prompt_of(row), prompt)
    return ""


def file_name(image: object) -> str:
    """The last component of an image's path or URL."""
    return str(image).rpartition("/")[2]


def is_prompt(row: Row, item: Item, prompt: str) -> bool:
    """Whether a row has this prompt, with the item's region appended if there is one."""
    if task_of(row) in ("score", "classify"):
        return True  # these rows have no prompt
    shown, width, height = prompt_of(row), row.get("width"), row.get("height")
    if item.region is None or (row.get("error") is not None and shown == prompt):
        return bool(shown == prompt)
    if not (isinstance(width, int) and isinstance(height, int) and min(width, height) > 0):
        return False
    return bool(shown == with_locations(prompt, location_values(item.region, width, height) or ()))


def mismatch(name: str, saved: object, wanted: object) -> str:
    """How a saved row differs from the input."""
    return f"has the {name} {shown(repr(saved))}, but the input has {shown(repr(wanted))}"


def described(change: Change) -> str:
    """How a file of the input has changed."""
    how = "has another modification time" if change.is_touched else "has changed"
    return f"{change.name} {how}"


@dataclass
class ImageChanges:
    """Changed images of saved rows, the number of removed ones, and new stamps of touched ones."""

    changed: list[Change] = field(default_factory=list)
    gone: int = 0
    touched: dict[int, Stamp] = field(default_factory=dict)

    def add(self, index: int, name: str, path: str, stamp: Stamp) -> None:
        """Compare a file with the stamp of an item."""
        now = read_stamp(path, stamp)
        if now is None:
            self.gone += 1
        elif (now[0], now[2]) != (stamp[0], stamp[2]):
            self.changed.append(Change(display_path(name), range(index, index + 1), False, True))
        elif now != stamp:
            self.touched[index] = now


def compare_images(
    inventory: Inventory, stamps: np.ndarray, is_answered: Callable[[range], bool]
) -> ImageChanges:
    """Compare the images on this machine with the stamps of answered images."""
    changes = ImageChanges()
    for index, name, path in inventory.other_files(stamps):
        if is_answered(range(index, index + 1)):
            changes.add(index, name, path, stamp_at(stamps, index))
    return changes


def stamp_at(stamps: np.ndarray, index: int) -> Stamp:
    """The stamp of an item; zeros if it has no stamp."""
    if index >= len(stamps):
        return 0, 0, 0
    return stamps.item(index, 0), stamps.item(index, 1), stamps.item(index, 2)


def files_changed(
    output: str, changes: Sequence[Change], total: int | None, *, can_retry: bool
) -> OutputExists:
    """The error for changed images, or one changed table, of saved rows."""
    names = listed([change.name for change in changes])
    of_all = "" if total is None else f" of {total:,}"
    what = f"{len(changes):,}{of_all} images: {names}" if len(changes) > 1 else names
    if len(changes) == 1 and changes[0].is_touched:
        what = described(changes[0])
    retry = "<--retry-changed> answers changed images again; or " if can_retry else ""
    hint = (
        f"{retry}restore the input, choose another <-o>, or replace the output with <--overwrite>"
    )
    return OutputExists(f"the input of {output} has changed: {what}", hint=hint)


def input_changed(output: str, number: int, change: str) -> OutputExists:
    """The error for rows of another input."""
    return OutputExists(
        f"{output} belongs to another input: row {number + 1:,} {change}",
        hint="name the same sources in the same order, new ones last; another <-o> starts a new "
        "run; <--overwrite> replaces the output",
    )


class ImageStamps:
    """The stamps of images, if they and the output are on this machine. A shard has its own file.

    The file `inputs/images` has the size, time and digest of each answered image, by its item.
    """

    def __init__(self, store: Store, name: str = STAMPS):
        self._store, self._name = store, name
        self._descriptor: int | None = None

    @staticmethod
    def merged(stores: Iterable[Store]) -> np.ndarray:
        """The merged stamps of several folders, which have different items."""
        parts = [ImageStamps(store).read() for store in stores]
        merged = no_stamps(max(map(len, parts)))
        for stamps in parts:
            np.copyto(merged[: len(stamps)], stamps, where=stamps[:, :1] != 0)
        return merged

    def read(self) -> np.ndarray:
        """The stamp of each item; zeros if it is missing, or cut by a power loss."""
        data = self._store.read(self._name) if isinstance(self._store, LocalStore) else None
        count = len(data or b"") // STAMP_BYTES
        stamps = np.frombuffer(data or b"", np.int64, count * 3).reshape(count, 3)
        return np.where(stamps[:, [0, 2]].all(axis=1, keepdims=True), stamps, 0)

    def note(self, index: int, stamp: Stamp | None) -> None:
        """Write the stamp of an item, before its rows are saved; write errors are ignored."""
        if stamp is None or not isinstance(self._store, LocalStore):
            return
        if self._descriptor is None:
            self._descriptor = self._store.open_append(self._name)
        with suppress(OSError):
            os.pwrite(self._descriptor, STAMP.pack(*stamp), index * STAMP_BYTES)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


RETRIED_STAMPS = f"{RETRIED}/images"
#: Each line is the number of a row, a space, and the row.
ANSWERS = f"{RETRIED}/{0:012}.jsonl"


class Retry:
    """A retry of failed rows and of rows of changed images in a complete output.

    The state folder keeps the new answers, also over interruptions, until all rows are answered.
    The stamps of their images are noted after the merge: if the command is killed before, the
    images still count as changed.
    """

    def __init__(self, comparison: InputComparison, *, wants_errors: bool):
        output = self._output = comparison.output
        self._comparison, self._wants_errors = comparison, wants_errors
        self._store = output.state.store
        self._log, self._stamps = (
            Log(self._store, ANSWERS),
            ImageStamps(self._store, RETRIED_STAMPS),
        )
        errors: list[int] = []
        if wants_errors:
            errors = [number for number, _ in output.saved.error_rows()]
        changed = comparison.rows_of_changed()
        self._numbers = sorted({*errors, *changed})
        saved = self._saved_answers()
        self._log.remove()
        self._kept = {number: saved[number] for number in self._numbers if number in saved}
        for number, line in self._kept.items():
            self._append(number, line)
        #: The rows to retry.
        self.missing = [number for number in self._numbers if number not in self._kept]
        self.ranges = merge_ranges(range(number, number + 1) for number in self.missing)
        kinds = [count(len(errors), "failed row")] * bool(errors)
        kinds += [f"{count(len(changed), 'row')} of changed images"] * bool(changed)
        self.notice = (
            f"retrying {' and '.join(kinds)}; {output.state.name} is replaced once all are answered"
        )

    def errors_before(self, saved: Counter[str]) -> Counter[str]:
        """The errors of rows that are not retried."""
        errors = errors_in(self._kept.values())
        return errors if self._wants_errors else saved + errors

    @contextmanager
    def saving(self) -> Iterator[SaveLine]:
        """Yield what keeps an answer until all rows are answered."""
        try:
            yield self._append
        finally:
            self._stamps.close()
            self._log.close()

    def note_stamp(self, index: int, stamp: Stamp | None) -> None:
        """Note the stamp of an image before its answers are kept."""
        self._stamps.note(index, stamp or (0, 0, 0))

    def merge(self) -> None:
        """Put the answers, which are complete now, into the output."""
        lines = self._saved_answers()
        self._output.saved.replace_rows(lines)
        stamps = self._stamps.read()
        for index in {json.loads(line)["index"] for line in lines.values()}:
            stamp = stamp_at(stamps, index)
            self._comparison.stamps.note(index, stamp if stamp[0] else None)
        self._store.delete([RETRIED_STAMPS])
        self._log.remove()

    def _append(self, number: int, line: bytes) -> None:
        self._log.append(b"%d %b" % (number, line))

    def _saved_answers(self) -> dict[int, bytes]:
        """The complete lines of the log, by number."""
        lines: dict[int, bytes] = {}
        stream = open_stream(self._store, ANSWERS)
        for line in stream or ():
            number, _, row = line.partition(b" ")
            if not (number.isdigit() and is_row(row)):
                break
            lines[int(number)] = row
        if stream is not None:
            stream.close()
        return lines
