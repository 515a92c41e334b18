"""Detects input that changed since its rows were written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pgcli.errors import OutputExists
from pgcli.printable import encodable
from pgcli.records import NO_STAMP, FileStamp, Item
from pgcli.regions import location_values, with_locations
from pgcli.rows import prompt_of, task_of
from pgcli.state.input_records import InputRecords
from pgcli.state.row_input import InputDigest, RowInput

Row = Mapping[str, Any]
IMAGE_CHANGED = "is of another image of that name"
#: The most characters of a value in a message.
MAX_QUOTED = 60


class ImageComparison(Protocol):
    """Compares images with the stamps of saved rows."""

    def differs(self, item: Item, stamp: FileStamp) -> bool:
        """Whether the item's image is known to be another one than that of the stamp."""


class NoImageComparison:
    """A comparison that takes every image for the same."""

    def differs(self, item: Item, stamp: FileStamp) -> bool:
        return False


@dataclass(frozen=True)
class SavedInput:
    """What is stored of the input of saved rows.

    Of `rows` rows the first `digested` have the `digest`. Rows without a record are compared by
    what they show: `read` yields rows with their indices, in order, at least those after the
    digested ones.
    """

    records: InputRecords
    rows: int = 0
    digested: int = 0
    digest: str = ""
    read: Callable[[], Iterator[tuple[int, Row]]] = lambda: iter(())


class RowComparer:
    """Compares saved rows with the input. `is_moved` images have other names than before."""

    def __init__(
        self, output: Path | str, images: ImageComparison | None = None, *, is_moved: bool = False
    ):
        self.output, self.is_moved = output, is_moved
        self._images = images or NoImageComparison()

    def differs(self, record: RowInput, row_input: RowInput, item: Item) -> str:
        """How the input differs from that of a record; empty if it does not."""
        if not record.is_same(row_input, is_moved=self.is_moved):
            return (
                f"is of other input than {quoted(item.id)}: of another image, prompt, region, "
                "choice or --keep column"
            )
        return self.changed_image(record, item)

    def changed_image(self, record: RowInput, item: Item) -> str:
        """That the image is another one than that of a record; empty if it is not."""
        return IMAGE_CHANGED if self._images.differs(item, record.stamp) else ""

    def differs_from_row(self, row: Row, item: Item, prompt: str) -> str:
        """How the input differs from what a row shows; empty if it does not."""
        shown = {name: row.get(name) for name in ("index", "id", "image")}
        has_image = "image" in row or "text" not in row
        if shown["index"] != item.index or shown["id"] != encodable(item.id):
            return f"is of {quoted(shown['id'])}, but the input has {quoted(item.id)}"
        if has_image and not self.is_moved and shown["image"] != encodable(item.image):
            return f"is of {quoted(shown['image'])}, but the input has {quoted(item.image)}"
        if not is_prompt(row, item, prompt):
            return f"has the prompt {quoted(prompt_of(row))}, but the input has {quoted(prompt)}"
        return ""


class InputCheck:
    """Compares the input, row by row, with the rows that are saved."""

    def __init__(self, saved: SavedInput, comparer: RowComparer):
        self.rows = saved.rows
        self._saved, self._comparer = saved, comparer
        # the digest is of the names of images, which are others if those were moved
        self._digested = 0 if comparer.is_moved else saved.digested
        self._digest = InputDigest(saved.digest)
        self._compared = 0
        self._first_difference: tuple[int, str] | None = None
        self._shown: Iterator[tuple[int, Row]] | None = None

    def is_new(self, row_index: int, row_input: RowInput, item: Item, prompt: str) -> bool:
        """Whether the row is not saved yet. Call it for each row, in order.

        Raises OutputExists where the saved row is of another input.
        """
        if row_index >= self.rows:
            return True
        self._digest.update(row_input)
        record = self._saved.records.read(row_index)
        if row_index < self._digested:
            self._check_digested(row_index, record, row_input, item, prompt)
        else:
            self._check_row(row_index, record, row_input, item, prompt)
        self._compared += 1  # not before: the digest of input that was refused must not be stored
        return False

    def count_saved(self, row_input: RowInput) -> None:
        """Note that the next new row has been saved."""
        self._digest.update(row_input)
        self.rows += 1
        self._compared += 1

    @property
    def digest(self) -> str | None:
        """The digest of the input of all saved rows; None until all have been compared."""
        return self._digest.value if self._compared == self.rows else None

    def _check_digested(
        self, row_index: int, record: RowInput | None, row_input: RowInput, item: Item, prompt: str
    ) -> None:
        """Raise for another image, and at the last digested row for any other difference."""
        self._digest.update_version_1(item, prompt)
        if record is not None:
            self._note_difference(row_index, self._comparer.differs(record, row_input, item))
            if change := self._comparer.changed_image(record, item):
                raise input_changed(self._comparer.output, row_index, change)
        if row_index == self._digested - 1 and not self._digest.is_as_expected():
            raise input_changed(self._comparer.output, *(self._first_difference or (row_index, "")))

    def _note_difference(self, row_index: int, difference: str) -> None:
        if difference and self._first_difference is None:
            self._first_difference = row_index, difference

    def _check_row(
        self, row_index: int, record: RowInput | None, row_input: RowInput, item: Item, prompt: str
    ) -> None:
        """Raise for any difference from the row's record, or without one from what it shows."""
        if record is not None:
            change = self._comparer.differs(record, row_input, item)
        else:
            self._shown = self._shown or self._saved.read()
            row = skip_to(self._shown, row_index) or {}
            change = self._comparer.differs_from_row(row, item, prompt)
        if change:
            raise input_changed(self._comparer.output, row_index, change)


class RowRecords(Protocol):
    """The input that rows were made from, by row index."""

    def read(self, row_index: int) -> RowInput | None: ...

    def close(self) -> None: ...


class RowCursor:
    """A pass through rows in the order of their indices, some of which may be missing."""

    def __init__(self, rows: Iterator[tuple[int, Row]]):
        self._rows = rows
        self._next = next(rows, None)

    def at(self, row_index: int) -> Row | None:
        """The row with the index, if there is one; indices must increase."""
        found = self._next if self.has_rows_from(row_index) else None
        return None if found is None or found[0] != row_index else found[1]

    def has_rows_from(self, row_index: int) -> bool:
        """Whether there is a row with this index or a later one."""
        while self._next is not None and self._next[0] < row_index:
            self._next = next(self._rows, None)
        return self._next is not None


class PreviousRows:
    """Rows that are written again: those without an error are copied, with `keeps_errors` all.

    `read` starts a pass through them, in order; `records` has their input.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[tuple[int, Row]]],
        records: RowRecords,
        comparer: RowComparer,
        *,
        keeps_errors: bool = False,
    ):
        self._comparer, self._records, self._keeps_errors = comparer, records, keeps_errors
        self._to_compare, self._to_copy = RowCursor(read()), RowCursor(read())
        self._is_answered: dict[int, bool] = {}

    def check(self, row_index: int, row_input: RowInput, item: Item, prompt: str) -> None:
        """Raise OutputExists if the previous row is of another input."""
        row = self._to_compare.at(row_index)
        self._is_answered[row_index] = row is not None and (
            self._keeps_errors or row.get("error") is None
        )
        if row is None:
            return
        record = self._records.read(row_index)
        if record is not None:
            change = self._comparer.differs(record, row_input, item)
        else:
            change = self._comparer.differs_from_row(row, item, prompt)
        if change:
            raise input_changed(self._comparer.output, row_index, change)

    def is_answered(self, row_index: int) -> bool:
        """Whether the previous row is copied. Call it once, after `check`."""
        return self._is_answered.pop(row_index)

    def stamp(self, row_index: int) -> FileStamp:
        """The stamp of the previous row's image."""
        record = self._records.read(row_index)
        return NO_STAMP if record is None else record.stamp

    def row(self, row_index: int) -> Row | None:
        """The previous row, if there is one; indices must increase."""
        return self._to_copy.at(row_index)

    def has_rows_from(self, row_index: int) -> bool:
        """Whether there is a previous row with this index or a later one."""
        return self._to_compare.has_rows_from(row_index)

    def check_end(self, count: int) -> None:
        """Raise OutputExists if there are more than `count` previous rows."""
        if self.has_rows_from(count):
            change = "is of something that the input has lost"
            raise input_changed(self._comparer.output, count, change)

    def close(self) -> None:
        self._records.close()


def skip_to(rows: Iterator[tuple[int, Row]], row_index: int) -> Row | None:
    """The row at an index further on; None after the last row."""
    return next((row for index, row in rows if index >= row_index), None)


def is_prompt(row: Row, item: Item, prompt: str) -> bool:
    """Whether a row's prompt is this one, followed by the item's region if it was located."""
    shown, width, height = prompt_of(row), row.get("width"), row.get("height")
    if task_of(row) in ("score", "classify"):
        return True  # such rows do not show it
    if item.region is None or (row.get("error") is not None and shown == prompt):
        return bool(shown == prompt)
    if not (isinstance(width, int) and isinstance(height, int) and min(width, height) > 0):
        return False
    return bool(shown == with_locations(prompt, location_values(item.region, width, height) or ()))


def quoted(value: object) -> str:
    """The value as a message shows it."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 1]}…"


def input_changed(output: Path | str, row_index: int, change: str = "") -> OutputExists:
    """The error for rows that were made from another input."""
    row = f"{row_index + 1:,}"
    where = f"row {row} {change}" if change else f"it differs within the first {row} rows"
    return OutputExists(
        f"the input is not the one that {output} was made from: {where}",
        hint="the input may only grow at its end; another -o starts anew, --overwrite replaces it",
    )
