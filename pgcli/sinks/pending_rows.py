"""Row indices still to be written; early answers go to the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pgcli.records import NO_STAMP, Answer, FileStamp, Item
from pgcli.rows import RowSchema, json_text
from pgcli.state.early_answers import Journal, JournaledRow
from pgcli.state.input_check import RowComparer
from pgcli.state.row_input import RowInput
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import JOURNAL

Row = Mapping[str, Any]


class PendingRows:
    """The rows to be written, in order, with their input, and answers that a run before journaled.

    Journaled rows for which `is_stale(row_index, row)` holds are dropped.
    """

    def __init__(self, state: RunState, schema: RowSchema, is_stale: Callable[[int, Row], bool]):
        self._schema = schema
        self._comparer: RowComparer = state.comparer
        self._journal = Journal(state.folder / f"{JOURNAL}{state.part}.jsonl")
        self._indices: deque[int] = deque()
        self._inputs: dict[int, RowInput] = {}
        self._rows = self._journal.load() if state.resumes else {}
        for row_index, (row, _) in list(self._rows.items()):
            if is_stale(row_index, row):
                self._drop(row_index)

    def add(self, row_index: int, row_input: RowInput, item: Item, prompt: str) -> None:
        """Append a row to be written. A journaled row of other input is dropped."""
        journaled = self._rows.get(row_index)
        if journaled is not None:
            if self._differs(journaled, row_input, item, prompt):
                self._drop(row_index)
            elif journaled.input is not None:
                row_input = replace(row_input, stamp=journaled.input.stamp)
        self._inputs[row_index] = row_input
        self._indices.append(row_index)

    def _differs(
        self, journaled: JournaledRow, row_input: RowInput, item: Item, prompt: str
    ) -> str:
        row, record = journaled
        if record is None:
            return self._comparer.differs_from_row(row, item, prompt)
        return self._comparer.differs(record, row_input, item)

    def add_stamp(self, row_indices: Iterable[int], stamp: FileStamp) -> None:
        """Note the stamp of the image of these rows."""
        for row_index in row_indices:
            self._inputs[row_index] = replace(self._inputs[row_index], stamp=stamp)

    def __contains__(self, row_index: int) -> bool:
        return row_index in self._rows

    def pop_row(self, row_index: int) -> Row | None:
        """The journaled row, returned once; None if there is none."""
        journaled = self._rows.pop(row_index, None)
        return None if journaled is None else journaled.row

    def journal(self, row_index: int, answer: Answer) -> None:
        """Keep the answer until its row is written. Raises OutputFailed."""
        row_input = self._inputs.get(row_index)
        if row_input is not None and answer.error is not None:
            row_input = replace(row_input, stamp=NO_STAMP)
        self._journal.add(row_index, json_text(self._schema.row(answer)), row_input)

    @property
    def next(self) -> tuple[int, RowInput]:
        """The index of the next row to be written, and its input."""
        return self._indices[0], self._inputs[self._indices[0]]

    def pop(self) -> None:
        """Note that the next row has been written."""
        row_index = self._indices.popleft()
        del self._inputs[row_index]
        self._journal.remove(row_index)

    def sync(self) -> None:
        self._journal.sync()

    def close(self) -> None:
        self._journal.close()

    def _drop(self, row_index: int) -> None:
        del self._rows[row_index]
        self._journal.remove(row_index)
