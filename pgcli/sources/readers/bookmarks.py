"""Where rows begin in a file that has no index, one of every few."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

#: Rows between two bookmarks; a million rows have a thousand of them.
EVERY = 1000


class Bookmark(NamedTuple):
    """The offset of a row in the file, and the number of its line or of its first member."""

    row: int
    offset: int
    number: int


class Bookmarks:
    """The bookmarks of a file, in order: their rows, offsets and numbers."""

    def __init__(
        self,
        rows: array[int] | None = None,
        offsets: array[int] | None = None,
        numbers: array[int] | None = None,
    ) -> None:
        self.arrays = rows or array("Q"), offsets or array("Q"), numbers or array("Q")

    def add(self, row: int, offset: int, number: int) -> None:
        """Note where a row begins, if it is the next to have a bookmark."""
        if row % EVERY == 0 and row > 0 and row == len(self.arrays[0]) * EVERY + EVERY:
            for values, value in zip(self.arrays, (row, offset, number), strict=True):
                values.append(value)

    def before(self, row: int) -> Bookmark | None:
        """The last bookmark that is not behind the row; None for the start of the file."""
        found = bisect_right(self.arrays[0], row) - 1
        if found < 0:
            return None
        rows, offsets, numbers = self.arrays
        return Bookmark(rows[found], offsets[found], numbers[found])
