"""The items of rows that are saved, for what is made beside rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pgcli.records import Item
from pgcli.run.rows import RunRows


class Items:
    """The items of rows in the order of rows, in a pass of its own through the input.

    Items of standard input are kept until their rows are saved.
    """

    def __init__(self, rows: RunRows, start: int = 0):
        self._rows, self._next = rows, start
        self._pass: Iterator[tuple[int, Item]] | None = None
        self._current: tuple[int, Item] | None = None
        self._kept: dict[int, Item] = {}

    def keep(self, numbered: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """The same items; those of standard input are kept."""
        for first, item in numbered:
            for row in range(first, first + len(item.prompts)):
                self._kept[row] = item
            yield first, item

    def of(self, row: int) -> Item:
        """The item of a row; rows must increase."""
        if row in self._kept:
            return self._kept.pop(row)
        if self._pass is None:
            assert self._rows.total is not None
            self._pass = self._rows.numbered(range(row, self._rows.total))
        while self._current is None or row >= self._current[0] + len(self._current[1].prompts):
            self._current = next(self._pass)
        return self._current[1]
