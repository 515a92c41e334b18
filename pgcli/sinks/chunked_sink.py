"""Rows gathered in chunks, each in a file of lines till it is complete and has its own place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from pgcli.errors import OutputFailed
from pgcli.records import Answer, Item
from pgcli.rows import RowSchema, json_text
from pgcli.sinks.chunk_store import Chunk, ChunkStore
from pgcli.sinks.jsonl import SECONDS_BETWEEN_SYNCS, json_line
from pgcli.sinks.pending_rows import PendingRows
from pgcli.state.input_check import InputCheck
from pgcli.state.previous_rows import PreviousRows
from pgcli.state.record_file import Mark
from pgcli.state.row_file import Checkpoint, RowFile, rows_of
from pgcli.state.run_state import TORN, State
from pgcli.state.shard import CHUNK_ROWS
from pgcli.state.state_folder import UNFINISHED, chunk_lines
from pgcli.state.write_errors import make_folder, writing


@dataclass
class Open:
    """A chunk that is not complete: its rows so far, and those that it had before, if any."""

    number: int
    file: Path
    saved: RowFile
    old: PreviousRows | None = None


class ChunkedSink:
    """Saves rows in chunks, each complete on the shelf or with its rows so far in a file of lines.

    A chunk that is there is not computed again, whoever computed it. `is_ours` says which are this
    process's to compute. With `retry` those with errors are made again from their other rows. It
    is the ledger of its run.
    """

    def __init__(
        self,
        state: State,
        layout: RowSchema,
        shelf: ChunkStore,
        *,
        is_ours: Callable[[int], bool] = lambda number: True,
        retry: bool = False,
    ):
        self.torn = 0
        self._state, self._layout, self._shelf = state, layout, shelf
        self._is_ours, self._retry = is_ours, retry
        self._folder = state.folder / UNFINISHED
        self._done = {n: c for n, c in shelf.chunks().items() if is_ours(n)}
        self._open: dict[int, Open] = {}
        self._passing: tuple[int, InputCheck] = (-1, InputCheck(state.output))
        self._is_begun = False
        self._synced = monotonic()
        if state.is_old:
            self._reopen()
        self._due = PendingRows(
            state,
            layout,
            lambda place, row: self._has(place) or (retry and row.get("error") is not None),
        )

    @property
    def rows(self) -> int:
        """How many rows are saved; of a chunk that is made again, how many are made."""
        done = sum(c.rows for n, c in self._done.items() if n not in self._open)
        return done + sum(chunk.saved.rows for chunk in self._open.values())

    @property
    def errors(self) -> Counter[str]:
        """The error rows among those saved, by their codes."""
        found: Counter[str] = Counter()
        for number, done in self._done.items():
            if number not in self._open:
                found.update(done.errors)
        for chunk in self._open.values():
            found.update(chunk.saved.errors)
        return found

    def is_due(self, place: int, item: Item, prompt: str) -> bool:
        number, at = divmod(place, CHUNK_ROWS)
        if not self._is_ours(number):
            return False
        chunk = self._open.get(number)
        if chunk is None and number in self._done:
            return self._is_beyond(number, at, item, prompt)
        if chunk is None:
            chunk = self._open[number] = self._opened(number)
        if not chunk.saved.is_new(at, item, prompt):
            return False
        self._due.add(place, item, prompt)
        if chunk.old is not None:
            chunk.old.insist(at, item, prompt)
        return True

    def is_known(self, place: int) -> bool:
        number, at = divmod(place, CHUNK_ROWS)
        return self._due.is_known(place, self._open[number].old, at)

    def row(self, place: int) -> Answer:
        number, at = divmod(place, CHUNK_ROWS)
        return self._due.row(place, self._open[number].old, at)

    def wait(self, place: int, answer: Answer) -> None:
        self._begin()
        self._due.wait(place, answer)

    def save(self, answer: Answer) -> None:
        self._begin()
        chunk = self._open[self._due.head() // CHUNK_ROWS]
        chunk.saved.add(json_line(answer, self._layout).encode(), answer.error)
        self._due.leave()
        if chunk.saved.rows == CHUNK_ROWS:
            self._complete(chunk)
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
                self._begin()
                for chunk in list(self._open.values()):
                    self._complete(chunk)
                self._shelf.finish()
            if not isinstance(problem, OutputFailed):
                self._sync()
        finally:
            for chunk in self._open.values():
                chunk.saved.close()
            self._due.close()
            self._shelf.clear()

    def _begin(self) -> None:
        if self._is_begun:
            return
        self._state.begin()
        with writing(self._folder):
            make_folder(self._folder)
        self._is_begun = True

    def _is_beyond(self, number: int, at: int, item: Item, prompt: str) -> bool:
        """Whether a row is new to a chunk that is there, of which it is compared if it is not."""
        done = self._done[number]
        if self._passing[0] != number:
            passing = InputCheck(self._state.output, done.rows, done.rows, done.digest)
            self._passing = (number, passing)
        if at < done.rows:
            return self._passing[1].is_new(at, item, prompt)
        raise AssertionError("a chunk that is not full is open")

    def _reopen(self) -> None:
        """Open what is not complete: chunks with their rows so far, those to be made again."""
        for number, done in self._done.items():
            if done.rows < CHUNK_ROWS or (self._retry and done.errors):
                self._open[number] = self._opened(number)
        for file in self._folder.glob(f"*{self._state.part}.jsonl"):
            name = file.name.removesuffix(f"{self._state.part}.jsonl")
            if name.isdigit() and self._is_ours(int(name)) and int(name) not in self._done:
                self._open[int(name)] = self._opened(int(name))

    def _opened(self, number: int) -> Open:
        done, old, progress = self._done.get(number), None, self._state.progress
        file = chunk_lines(self._state.output, number, self._state.part)
        safe = progress.safe if progress.chunk == number else Checkpoint()
        if done is not None and self._retry and done.errors:
            file = file.with_suffix(".retry.jsonl")
            old, safe = (
                PreviousRows(self._state.output, partial(self._shelf.rows, number)),
                Checkpoint(),
            )
        elif done is not None and not file.exists():
            safe = self._unpacked(file, done)
        aside, output = self._state.folder / TORN, self._state.output
        is_new = not self._state.is_old
        saved = RowFile(file, aside, safe, output=output, is_new=is_new)
        self.torn += saved.torn
        return Open(number, file, saved, old)

    def _unpacked(self, file: Path, done: Chunk) -> Checkpoint:
        """The rows of a chunk that more may come to, as lines again."""
        lines = [json_text(dict(row)) + "\n" for row in self._shelf.rows(done.number)]
        beside = file.with_suffix(".tmp")
        with writing(file):
            make_folder(self._folder)
            beside.write_text("".join(lines), encoding="utf-8")
            beside.replace(file)
        size = sum(len(line.encode()) for line in lines)
        return Checkpoint(done.rows, size, done.digest, dict(done.errors))

    def _has(self, place: int) -> bool:
        number, at = divmod(place, CHUNK_ROWS)
        if number in self._open:
            return at < self._open[number].saved.rows
        return number in self._done and at < self._done[number].rows

    def _complete(self, chunk: Open) -> None:
        """Put the chunk on the shelf, and let go of its lines.

        One whose rows were not all compared with the input, as behind a limit, stays as it is.
        """
        if not chunk.saved.is_compared:
            return
        rows, done = chunk.saved.rows, self._done.get(chunk.number)
        if chunk.old is not None:
            chunk.old.insist_on_all(rows)
        if rows and (done is None or rows > done.rows or chunk.old is not None):
            safe = chunk.saved.sync()
            told = Chunk(chunk.number, rows, safe.digest, dict(safe.errors))
            self._shelf.put(told, [dict(row) for row in rows_of(chunk.file, Mark())])
            self._done[chunk.number] = told
        chunk.saved.close()
        del self._open[chunk.number]
        with writing(chunk.file):
            chunk.file.unlink(missing_ok=True)

    def _sync(self) -> None:
        self._synced = monotonic()
        if not self.rows and not self._state.is_old:
            return
        progress = self._state.progress
        progress.rows, progress.errors = self.rows, dict(self.errors)
        progress.chunk, progress.safe = 0, Checkpoint()
        for chunk in self._open.values():
            progress.chunk, progress.safe = chunk.number, chunk.saved.sync()
        self._due.sync()
        self._state.tell(lasting=True)
