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
    """The bookmarks of a file, in order."""

    def __init__(self) -> None:
        self._rows, self._offsets, self._numbers = array("Q"), array("Q"), array("Q")

    def add(self, row: int, offset: int, number: int) -> None:
        """Note where a row begins, if it is the next to have a bookmark."""
        if row % EVERY == 0 and row > 0 and row == len(self._rows) * EVERY + EVERY:
            self._rows.append(row)
            self._offsets.append(offset)
            self._numbers.append(number)

    def before(self, row: int) -> Bookmark | None:
        """The last bookmark that is not behind the row; None for the start of the file."""
        found = bisect_right(self._rows, row) - 1
        if found < 0:
            return None
        return Bookmark(self._rows[found], self._offsets[found], self._numbers[found])
