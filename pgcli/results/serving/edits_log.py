"""The file of the edits that a page on a server makes: one line each, appended at once."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from pgcli.errors import OutputInUse
from pgcli.labels.json_values import InvalidValue
from pgcli.results.edits import (
    Edit,
    corrected,
    edits_file,
    read_edit,
    read_edit_lines,
    row_key,
)
from pgcli.results.pages import DIGEST, page_row
from pgcli.results.serving.rows import (
    ACCEPTED,
    CORRECTED,
    REJECTED,
    UNREVIEWED,
    Array,
    RowBlock,
    ServedRows,
)
from pgcli.rows import answer_digest, json_text
from pgcli.stores.files import open_descriptor
from pgcli.stores.writing import wrap_write_errors

SYNC_SECONDS = 1.0  # between two times that the disk is told to keep what is written


class EditsLog:
    """The edits of the rows of an output, in a file that one server at a time appends to.

    The file disappears if it is empty at the end. Raises UsageError, OutputInUse and OutputFailed.
    """

    def __init__(self, rows: ServedRows, reviewer: str | None = None):
        self.path, self._rows, self._reviewer = edits_file(rows.output), rows, reviewer
        self._lock, self._unsynced = threading.RLock(), threading.Event()
        with wrap_write_errors(self.path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self._descriptor = open_descriptor(self.path, flags)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
                raise OutputInUse(
                    f"{self.path} is in use by another pgcli view --serve",
                    hint="open the address that it printed, or stop it",
                ) from None
            saved = read_edit_lines(self.path)
            data = self.path.read_bytes()
            if len(saved) > data.count(b"\n"):
                os.write(self._descriptor, b"\n")
            else:  # a truncated last line
                os.ftruncate(self._descriptor, data.rfind(b"\n") + 1)
        self._unmatched = {edit.key: edit for edit in saved}  # the last edit of each row
        self._indices = np.array([edit.index for edit in saved])
        self._changed: list[Edit] = []
        self._edits: dict[int, Edit] = {}  # of reviewed rows, by their numbers
        self._changes: list[int] = []  # numbers of rows whose edits changed, in order
        self._history: list[tuple[int, Edit | None]] = []  # rows with the edits they had, for undo
        self.count = 0  # edits of this session
        self._is_closed = threading.Event()
        self._syncing = threading.Thread(target=self._sync, daemon=True)
        self._syncing.start()

    def match(self, block: RowBlock, index: Array) -> None:
        """Find the saved edits of a block's rows."""
        for place in map(int, np.flatnonzero(np.isin(index, self._indices))):
            row = self._rows.row_in(block, place)
            edit = self._unmatched.pop(row_key(row), None)
            if edit is not None and edit.digest == answer_digest(row):
                self._set(block.first + place, edit)
            elif edit is not None and edit.state != "open":
                self._changed.append(edit)

    def unapplied(self) -> dict[str, list[Edit]]:
        """The saved edits that no row has, by the reason, once all rows are indexed."""
        missing = [edit for edit in self._unmatched.values() if edit.state != "open"]
        return {"the answer has changed": self._changed, "the row is missing": missing}

    def add(self, number: int, values: Mapping[str, Any]) -> None:
        """Save an edit of a row, as the page sends it.

        Raises InvalidValue if it does not fit the row, and OutputFailed if nothing was saved.
        """
        with self._lock:
            before = self._edits.get(number)
            self._append(number, values)
            self._history.append((number, before))

    def undo(self) -> int | None:
        """Restore the edit before the last one of all; the number of its row, None without any."""
        with self._lock:
            if not self._history:
                return None
            number, before = self._history[-1]
            values = {"state": "open"} if before is None else before.values
            self._append(number, {**values, "digest": answer_digest(self._rows.row(number))})
            self._history.pop()
            return number

    def _append(self, number: int, values: Mapping[str, Any]) -> None:
        row = self._rows.row(number)
        if values["digest"] != page_row(row).get(DIGEST):
            raise InvalidValue("the answer has changed: reload the page")
        line = {**dict(zip(("index", "id", "prompt"), row_key(row), strict=True)), **values}
        if self._reviewer is not None:
            line["reviewer"] = self._reviewer
        edit = read_edit(line, self.count + 1)
        corrected(row, edit)
        data = f"{json_text(line)}\n".encode()
        with wrap_write_errors(self.path):
            size = os.fstat(self._descriptor).st_size
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                os.ftruncate(self._descriptor, size)
                raise
        self.count += 1
        self._set(number, edit)
        self._unsynced.set()

    def _set(self, number: int, edit: Edit) -> None:
        if edit.state == "open":
            self._edits.pop(number, None)
        else:
            self._edits[number] = edit
        self._changes.append(number)

    def changed_since(self, place: int) -> tuple[int, list[tuple[int, Mapping[str, Any] | None]]]:
        """The end of the changes, and the edits of the rows that changed since a place."""
        end = len(self._changes)
        edits = {number: self._edits.get(number) for number in self._changes[place:end]}
        return end, [(n, None if edit is None else edit.values) for n, edit in edits.items()]

    def states(self, total: int) -> Array:
        """The review of each row."""
        states = np.full(total, UNREVIEWED, np.int8)
        for number, edit in [*self._edits.items()]:
            if number < total:
                accepted = CORRECTED if edit.is_correction else ACCEPTED
                states[number] = accepted if edit.state == "accepted" else REJECTED
        return states

    def _sync(self) -> None:
        """Let the disk keep the edits, without the lock: the next edit does not wait for it."""
        while not self._is_closed.is_set():
            self._unsynced.wait()
            self._unsynced.clear()
            os.fsync(self._descriptor)
            self._is_closed.wait(SYNC_SECONDS)

    def close(self) -> None:
        """Let the disk keep all edits, and another server add more."""
        self._is_closed.set()
        self._unsynced.set()
        self._syncing.join()
        with self._lock:
            os.fsync(self._descriptor)
            if not os.fstat(self._descriptor).st_size:
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
