"""The rows of an output that is made anew: those without an error, which need no asking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.records import Item
from pgcli.state.input_check import changed, is_row_of

Row = Mapping[str, Any]


class PreviousRows:
    """Rows read again from the output that has them, each pass through it in order."""

    def __init__(self, output: Path, rows: Callable[[], Iterator[Row]]):
        self._output = output
        self._compared = enumerate(rows())
        self._left = enumerate(rows())
        self._is_known: dict[int, bool] = {}

    def insist(self, place: int, item: Item, prompt: str) -> None:
        """Raise OutputExists if the old row at the place is of something else."""
        row = following(self._compared, place)
        if row is not None and not is_row_of(row, item, prompt):
            raise changed(self._output, place, f"{row.get('id')!r}, now {item.id!r}")
        self._is_known[place] = row is not None and row.get("error") is None

    def is_known(self, place: int) -> bool:
        """Whether the old row has no error. To be asked once, after `insist`."""
        return self._is_known.pop(place)

    def row(self, place: int) -> Row:
        """The old row; places come in order."""
        row = following(self._left, place)
        assert row is not None
        return row

    def insist_on_all(self, count: int) -> None:
        """Raise OutputExists where there are old rows behind the first `count`."""
        if following(self._left, count) is not None:
            raise changed(self._output, count, "something that is not there any more")


def following(rows: Iterator[tuple[int, Row]], place: int) -> Row | None:
    """The row at a place further on; None behind the last."""
    return next((row for number, row in rows if number >= place), None)
