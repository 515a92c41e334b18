"""Detects input that changed since its rows were written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.printable import encodable
from pgcli.records import Item

Row = Mapping[str, Any]


class InputCheck:
    """Compares the input, row by row, with the rows that are saved.

    Of `rows` saved rows the first `digested` have the `digest`; the rest are read from `tail`.
    """

    def __init__(
        self,
        output: Path,
        rows: int = 0,
        digested: int = 0,
        digest: str = "",
        tail: Iterator[Row] | None = None,
    ):
        self.rows = rows
        self._output, self._digested, self._expected = output, digested, digest
        self._tail = tail or iter(())
        self._digest = blake2b(digest_size=16)
        self._compared = 0
        self._new_keys: deque[bytes] = deque()
        self._data_digest: tuple[int | None, bytes] = (None, b"")

    def is_new(self, row_index: int, item: Item, prompt: str) -> bool:
        """Whether the row is not saved yet. Call it for each row, in order.

        Raises OutputExists where the saved row is of another item or prompt.
        """
        key = self._key(item, prompt)
        if row_index >= self.rows:
            self._new_keys.append(key)
            return True
        self._digest.update(key)
        self._compared += 1
        if row_index >= self._digested:
            check_row(next(self._tail, {}), row_index, item, prompt, self._output)
        elif row_index == self._digested - 1 and self._digest.hexdigest() != self._expected:
            raise input_changed(self._output, row_index)
        return False

    def count_saved(self) -> None:
        """Note that the next new row has been saved."""
        self._digest.update(self._new_keys.popleft())
        self.rows += 1
        self._compared += 1

    @property
    def digest(self) -> str | None:
        """The digest of the input of all saved rows; None until all have been compared."""
        return self._digest.hexdigest() if self._compared == self.rows else None

    def _key(self, item: Item, prompt: str) -> bytes:
        """The names of a row's input, and a digest of image bytes that a table holds.

        Such an image may have no name but its row number, which another order would not change.
        """
        if self._data_digest[0] != item.index:  # several prompts share an image
            digest = b"" if item.data is None else blake2b(item.data, digest_size=16).digest()
            self._data_digest = (item.index, digest)
        names = f"{item.index}\0{item.id}\0{item.image}\0{prompt}\n"
        return names.encode("utf-8", "surrogatepass") + self._data_digest[1]


class PreviousRows:
    """The rows of an output that is made again; those without an error are copied.

    `read` starts a pass through them, in order.
    """

    def __init__(self, output: Path, read: Callable[[], Iterator[Row]]):
        self._output = output
        self._to_compare, self._to_copy = enumerate(read()), enumerate(read())
        self._is_answered: dict[int, bool] = {}

    def check(self, row_index: int, item: Item, prompt: str) -> None:
        """Raise OutputExists if the previous row is of another item or prompt."""
        row = skip_to(self._to_compare, row_index)
        if row is not None:
            check_row(row, row_index, item, prompt, self._output)
        self._is_answered[row_index] = row is not None and row.get("error") is None

    def is_answered(self, row_index: int) -> bool:
        """Whether the previous row has no error. Call it once, after `check`."""
        return self._is_answered.pop(row_index)

    def row(self, row_index: int) -> Row:
        """The previous row; indices must increase."""
        row = skip_to(self._to_copy, row_index)
        assert row is not None
        return row

    def check_end(self, count: int) -> None:
        """Raise OutputExists if there are more than `count` previous rows."""
        if skip_to(self._to_compare, count) is not None:
            raise input_changed(self._output, count, "was of something that the input has lost")


def skip_to(rows: Iterator[tuple[int, Row]], row_index: int) -> Row | None:
    """The row at an index further on; None after the last row."""
    return next((row for index, row in rows if index >= row_index), None)


def check_row(row: Row, row_index: int, item: Item, prompt: str, output: Path) -> None:
    """Raise OutputExists if a saved row is not that of the item and prompt."""
    if not is_row_of(row, item, prompt):
        change = f"was of {row.get('id')!r}, now {item.id!r}"
        raise input_changed(output, row_index, change)


def is_row_of(row: Row, item: Item, prompt: str) -> bool:
    """Whether a row is that of the item and prompt, to which a region may have been appended."""
    return (
        row.get("index") == item.index
        and row.get("id") == encodable(item.id)
        and str(row.get("prompt")).startswith(prompt)
    )


def input_changed(output: Path, row_index: int, change: str = "") -> OutputExists:
    """The error for rows that were made from another input."""
    row = f"{row_index + 1:,}"
    where = f"row {row} {change}" if change else f"it differs within the first {row} rows"
    return OutputExists(
        f"the input is not the one that {output} was made from: {where}",
        hint="the input may only grow at its end; another -o starts anew, --overwrite replaces it",
    )
