"""The rows that are to be saved, in order, and those among them that were answered before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pgcli.records import Answer, Item
from pgcli.rows import RowSchema, json_text
from pgcli.state.input_check import is_row_of
from pgcli.state.journal import Journal
from pgcli.state.previous_rows import PreviousRows
from pgcli.state.run_state import JOURNAL, State

Row = Mapping[str, Any]


class PendingRows:
    """Places of rows in the order in which they leave; answers that wait for earlier ones are safe.

    What waited when a run before this one ended is known, unless `is_useless(place, row)`.
    """

    def __init__(self, state: State, layout: RowSchema, is_useless: Callable[[int, Row], bool]):
        self._layout = layout
        self._journal = Journal(state.folder / f"{JOURNAL}{state.part}.jsonl")
        self._places: deque[int] = deque()
        self._known = self._journal.rows() if state.is_old else {}
        for place, row in list(self._known.items()):
            if is_useless(place, row):
                self._forget(place)

    def add(self, place: int, item: Item, prompt: str) -> None:
        """The row is the next to leave. One known there that is of something else is forgotten."""
        self._places.append(place)
        known = self._known.get(place)
        if known is not None and not is_row_of(known, item, prompt):
            self._forget(place)

    def is_known(self, place: int, old: PreviousRows | None, at: int) -> bool:
        """Whether the row is known, or is at this place of an old file without an error."""
        is_old = old is not None and old.is_known(at)
        return is_old or place in self._known

    def row(self, place: int, old: PreviousRows | None, at: int) -> Answer:
        """The answer of the row that is known at a place, once, else of the old file's."""
        row = self._known.pop(place, None)
        if row is None:
            assert old is not None
            row = old.row(at)
        return self._layout.answer(row)

    def wait(self, place: int, answer: Answer) -> None:
        """Keep the answer till it leaves. Raises OutputFailed."""
        self._journal.add(place, json_text(self._layout.row(answer)))

    def head(self) -> int:
        """The place whose row is next."""
        return self._places[0]

    def leave(self) -> None:
        """The row at the head is saved."""
        self._journal.leave(self._places.popleft())

    def sync(self) -> None:
        self._journal.sync()

    def close(self) -> None:
        self._journal.close()

    def _forget(self, place: int) -> None:
        self._known.pop(place)
        self._journal.leave(place)
