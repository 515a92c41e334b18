"""Comparison of saved rows and image stamps with the input, on resume and by `check`."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pgcli.boxes import location_values, with_locations
from pgcli.errors import OutputExists
from pgcli.inputs.inventory import Change, Inventory
from pgcli.inputs.paths import display_path
from pgcli.inputs.stamps import Stamp, no_stamps, read_stamp
from pgcli.records import Item
from pgcli.rows import prompt_of, task_of
from pgcli.run.rows import RunRows
from pgcli.stores import LocalStore, Store
from pgcli.text import encodable, listed, shown

Row = Mapping[str, Any]
STAMPS = "inputs/images"
STAMP = struct.Struct("=3q")
STAMP_BYTES = STAMP.size
WAYS_OUT = "restore the input; another <-o> starts a new run; <--overwrite> replaces the output"


def check_saved_rows(probes: Iterable[tuple[int, Row | None]], rows: RunRows, output: str) -> None:
    """Raise OutputExists if sampled rows of an output differ from the input.

    Their files were compared by size and time before.
    """
    for number, row in probes:
        if number >= (rows.total or 0):
            continue
        change = "is not a row"
        # the name of an image in a table may depend on its bytes, which are read only if needed
        for images in (False, True):
            if row is None or not change:
                break
            _, item = next(rows.numbered(range(number, number + 1), images=images))
            change = input_difference(row, item, item.prompts[0])
        if change:
            raise input_changed(output, number, change)


def check_each_row(saved: Iterable[tuple[int, Row]], rows: RunRows, output: str) -> None:
    """Raise OutputExists if one of the saved rows, in order, differs from the input."""
    expected: Iterator[tuple[Item, str]] = iter(())
    at = -1
    for number, row in saved:
        if number != at:
            of_range = rows.numbered(range(number, rows.total or 0), images=False)
            expected = ((item, prompt) for _, item in of_range for prompt in item.prompts)
        at = number + 1
        if (pair := next(expected, None)) is None:
            return  # the rest is beyond --limit
        if input_difference(row, *pair):
            check_saved_rows([(number, row)], rows, output)


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
