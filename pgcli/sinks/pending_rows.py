"""Row indices still to be written; early answers go to the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pgcli.records import Answer, Item
from pgcli.rows import RowSchema, json_text
from pgcli.state.input_check import is_row_of
from pgcli.state.journal import Journal
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import JOURNAL

Row = Mapping[str, Any]


class PendingRows:
    """The indices of rows to be written, in order, and the answers that a previous run journaled.

    Journaled rows for which `is_stale(row_index, row)` holds are dropped.
    """

    def __init__(self, state: RunState, schema: RowSchema, is_stale: Callable[[int, Row], bool]):
        self._schema = schema
        self._journal = Journal(state.folder / f"{JOURNAL}{state.part}.jsonl")
        self._indices: deque[int] = deque()
        self._rows = self._journal.load() if state.resumes else {}
        for row_index, row in list(self._rows.items()):
            if is_stale(row_index, row):
                self._drop(row_index)

    def add(self, row_index: int, item: Item, prompt: str) -> None:
        """Append a row to be written. A journaled row of another item or prompt is dropped."""
        self._indices.append(row_index)
        row = self._rows.get(row_index)
        if row is not None and not is_row_of(row, item, prompt):
            self._drop(row_index)

    def __contains__(self, row_index: int) -> bool:
        return row_index in self._rows

    def pop_row(self, row_index: int) -> Row | None:
        """The journaled row, returned once; None if there is none."""
        return self._rows.pop(row_index, None)

    def journal(self, row_index: int, answer: Answer) -> None:
        """Keep the answer until its row is written. Raises OutputFailed."""
        self._journal.add(row_index, json_text(self._schema.row(answer)))

    @property
    def next(self) -> int:
        """The index of the next row to be written."""
        return self._indices[0]

    def pop(self) -> None:
        """Note that the next row has been written."""
        self._journal.remove(self._indices.popleft())

    def sync(self) -> None:
        self._journal.sync()

    def close(self) -> None:
        self._journal.close()

    def _drop(self, row_index: int) -> None:
        del self._rows[row_index]
        self._journal.remove(row_index)
