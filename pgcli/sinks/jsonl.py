"""Rows as lines of JSON: in a file that a run goes on with wherever it was killed, or on a pipe."""

from __future__ import annotations

from collections import Counter
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Self

from pgcli.errors import OutputFailed
from pgcli.records import Answer, Item
from pgcli.rows import RowSchema, json_text
from pgcli.sinks.pending_rows import PendingRows
from pgcli.state.previous_rows import PreviousRows
from pgcli.state.record_file import Mark
from pgcli.state.row_file import Checkpoint, RowFile, rows_of
from pgcli.state.run_state import RETRIED, TORN, State
from pgcli.state.write_errors import sync, writing

#: So often rows are made to outlast a power cut; those of the last seconds are computed again.
SECONDS_BETWEEN_SYNCS = 5.0


def json_line(answer: Answer, layout: RowSchema, *, ascii_only: bool = False) -> str:
    """The row as compact JSON and a newline.

    `ascii_only` is for a terminal: JSON itself leaves DEL, C1 controls and direction marks raw.
    """
    return json_text(layout.row(answer), ascii_only=ascii_only) + "\n"


class JsonLines:
    """The file is the record of what is done: rows in the input's order, each a whole line.

    Rows that wait for earlier ones are safe in a journal beside it. It is the ledger of its run.
    With `retry` the rows without errors are known, and a new file takes the old one's place once
    it is complete.
    """

    def __init__(self, state: State, layout: RowSchema, *, retry: bool = False):
        self._state = state
        self._layout = layout
        self._synced = monotonic()
        old_rows = partial(rows_of, state.output, Mark())
        self._old = PreviousRows(state.output, old_rows) if retry else None
        self._file = state.folder / RETRIED if retry else state.output
        safe = state.progress.safe if state.is_old and not retry else Checkpoint()
        # an output that is to be replaced is not looked into
        self._saved = RowFile(self._file, state.folder / TORN, safe, is_new=not state.is_old)
        self._due = PendingRows(
            state,
            layout,
            lambda place, row: place < self.rows or (retry and row.get("error") is not None),
        )

    @property
    def rows(self) -> int:
        """How many rows are saved."""
        return self._saved.rows

    @property
    def errors(self) -> Counter[str]:
        """The error rows among those saved, by their codes."""
        return self._saved.errors

    @property
    def torn(self) -> int:
        """How many bytes at the file's end were no row, and were put aside."""
        return self._saved.torn

    def is_due(self, place: int, item: Item, prompt: str) -> bool:
        is_new = self._saved.is_new(place, item, prompt)
        if is_new:
            self._due.add(place, item, prompt)
            if self._old is not None:
                self._old.insist(place, item, prompt)
        return is_new

    def is_known(self, place: int) -> bool:
        return self._due.is_known(place, self._old, place)

    def row(self, place: int) -> Answer:
        return self._due.row(place, self._old, place)

    def wait(self, place: int, answer: Answer) -> None:
        self._state.begin()
        self._due.wait(place, answer)

    def save(self, answer: Answer) -> None:
        self._state.begin()
        self._saved.add(json_line(answer, self._layout).encode(), answer.error)
        self._due.leave()
        if monotonic() - self._synced >= SECONDS_BETWEEN_SYNCS:
            self._sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._state.begin()
                self._saved.made()
            if not isinstance(problem, OutputFailed):
                self._sync()
                self._publish(is_complete=kind is None)
        finally:
            self._saved.close()
            self._due.close()

    def _sync(self) -> None:
        self._synced = monotonic()
        if not self.rows and not self._state.is_old:
            return
        progress, safe = self._state.progress, self._saved.sync()
        if self._old is None:  # else the output is still the old one
            progress.safe = safe
        progress.rows, progress.errors = self.rows, dict(self.errors)
        self._due.sync()
        self._state.tell(lasting=True)

    def _publish(self, *, is_complete: bool) -> None:
        with writing(self._state.output):
            if is_complete and self._old is not None:
                self._old.insist_on_all(self.rows)
                self._file.replace(self._state.output)
                self._state.progress.safe = self._saved.safe
                self._state.tell(lasting=True)
            sync(self._state.output.parent)
