"""The rows of a table whose names are accepted, by their numbers in the table."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass

from pgcli.sources.source_part import RowSlice


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The numbers of the chosen rows, in order; None where all of them are."""

    numbers: array[int] | None = None

    def in_table(self, part: RowSlice) -> RowSlice:
        """The rows of the table that a part of the chosen ones is in."""
        if self.numbers is None:
            return part
        numbers = self.numbers[part.start : part.stop]

        def needs_image(row: int) -> bool:
            position = self.position(row)
            return position is not None and part.needs_image(position)

        return RowSlice(numbers[0], numbers[-1] + 1, needs_image) if numbers else RowSlice(0, 0)

    def position(self, row: int) -> int | None:
        """The position of a row of the table among the chosen ones; None if it is not chosen."""
        if self.numbers is None:
            return row
        found = bisect_left(self.numbers, row)
        is_chosen = found < len(self.numbers) and self.numbers[found] == row
        return found if is_chosen else None
