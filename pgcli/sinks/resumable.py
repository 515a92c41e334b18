"""Writes rows in input order and resumes after a kill or a power loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from time import monotonic
from typing import Self

from pgcli.errors import OutputFailed
from pgcli.records import Answer, DecodedImage, Item
from pgcli.rows import RowSchema
from pgcli.sinks.chunk_store import Chunk, ChunkStore, CompleteChunk, OpenChunk
from pgcli.sinks.earlier_rows import open_earlier_rows
from pgcli.sinks.lines import json_line
from pgcli.sinks.pending_rows import PendingRows, Row
from pgcli.state.progress import FileCheckpoint
from pgcli.state.row_input import RowInput
from pgcli.state.run_state import RunState
from pgcli.state.saved_inputs import SavedInputs

#: Seconds between flushes to disk; a power loss costs the rows of the last ones.
SECONDS_BETWEEN_SYNCS = 5.0


class ResumableSink:
    """The rows of a run, in chunks: complete ones in the store, open ones as files of lines.

    It is the `ResumeLog` of its run. With `retry` error rows are made again and the others copied.
    A run that adds prompts copies the rows of the output, without error rows if `retries_earlier`.
    `torn` bytes at the ends of files were not rows, and were moved aside.
    """

    def __init__(
        self,
        state: RunState,
        schema: RowSchema,
        store: ChunkStore,
        *,
        retry: bool = False,
        retries_earlier: bool = False,
    ):
        self._state, self._schema, self.store, self._retry = state, schema, store, retry
        self._chunk_rows = store.chunk_rows
        self._open: dict[int, OpenChunk] = {}
        self._compared: tuple[int, CompleteChunk] | None = None
        self._is_begun = False
        self._synced_at = monotonic()
        self.torn = 0
        for number in store.unfinished() if state.resumes else ():
            self._open_chunk(number)
        self._inputs = SavedInputs(state.output, store.chunk_rows)
        self._pending = PendingRows(state, schema, self._is_stale)
        self._earlier = open_earlier_rows(state, retry=retries_earlier)

    @property
    def rows(self) -> int:
        """The number of rows saved; of a chunk that is made again, those made so far."""
        complete = sum(chunk.rows for chunk in self._complete())
        return complete + sum(chunk.file.rows for chunk in self._open.values())

    @property
    def errors(self) -> Counter[str]:
        """The number of error rows among the saved rows, by code."""
        counts: Counter[str] = Counter()
        for chunk in self._complete():
            counts.update(chunk.errors)
        for open_chunk in self._open.values():
            counts.update(open_chunk.file.errors)
        return counts

    def is_unchanged(self, table_statuses: Collection[bytes], row_index: int) -> bool:
        """Whether the row is saved, and its image is in a table with one of these statuses.

        Where no inputs are recorded, there is nothing that the image could be compared with.
        """
        number, index = divmod(row_index, self._chunk_rows)
        if number in self._open:
            chunk = self._open[number]
            rows = 0 if chunk.previous is not None else chunk.file.rows
        else:
            rows = self.store.chunks[number].rows if number in self.store.chunks else 0
        if index >= rows or not self.store.keeps_inputs:
            return index < rows
        record = self._inputs.read(row_index)
        return record is not None and record.stamp.status in table_statuses

    def is_missing(self, row_index: int, item: Item, prompt: str) -> bool:
        number, index = divmod(row_index, self._chunk_rows)
        chunk = self._open.get(number)
        if chunk is None:
            if not self.store.owns(number):
                return False
            if number in self.store.chunks:
                check = self._complete_chunk(number).check
                return check.is_new(index, RowInput.of(item, prompt), item, prompt)
            chunk = self._open_chunk(number)
        row_input = RowInput.of(item, prompt)
        if not chunk.file.is_new(index, row_input, item, prompt):
            return False
        self._pending.add(row_index, row_input, item, prompt)
        if chunk.previous is not None:
            chunk.previous.check(index, row_input, item, prompt)
        if self._earlier is not None:
            self._earlier.check(row_index, row_input, item, prompt)
        return True

    def note_image(self, row_indices: Iterable[int], image: DecodedImage) -> None:
        stamp, status = image.stamp, image.item.table_status
        self._pending.add_stamp(row_indices, replace(stamp, status=status) if status else stamp)

    def is_answered(self, row_index: int) -> bool:
        number, index = divmod(row_index, self._chunk_rows)
        previous = self._open[number].previous
        is_copied = previous is not None and previous.is_answered(index)
        is_earlier = self._earlier is not None and self._earlier.is_answered(row_index)
        return is_copied or is_earlier or row_index in self._pending

    def stored_answer(self, row_index: int) -> Answer:
        number, index = divmod(row_index, self._chunk_rows)
        row = self._pending.pop_row(row_index)
        for previous, at in ((self._open[number].previous, index), (self._earlier, row_index)):
            if row is None and previous is not None and (row := previous.row(at)) is not None:
                self._pending.add_stamp([row_index], previous.stamp(at))
        assert row is not None
        return self._schema.answer(row)

    def journal(self, row_index: int, answer: Answer) -> None:
        self._begin()
        self._pending.journal(row_index, answer)

    def save(self, answer: Answer) -> None:
        self._begin()
        row_index, row_input = self._pending.next
        chunk = self._open[row_index // self._chunk_rows]
        chunk.file.append(json_line(answer, self._schema).encode(), answer.error, row_input)
        self._pending.pop()
        if chunk.file.rows == self._chunk_rows:
            self._finish_chunk(chunk)
        if monotonic() - self._synced_at >= SECONDS_BETWEEN_SYNCS:
            self._sync()

    def has_earlier_rows(self, rows: int) -> bool:
        """Whether rows of the output to which prompts are added follow on these `rows`."""
        return self._earlier is not None and self._earlier.has_rows_from(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        try:
            if kind is None:
                self._begin()
                for chunk in list(self._open.values()):
                    self._finish_chunk(chunk)
                if all(chunk.file.is_compared for chunk in self._open.values()):
                    self.store.finish()
            if not isinstance(problem, OutputFailed):
                self._sync()
        finally:
            self.close()

    def close(self) -> None:
        """Close the files and leave the output as it is."""
        for chunk in self._open.values():
            chunk.close()
        if self._compared is not None:
            self._compared[1].records.close()
        self._pending.close()
        self._inputs.close()
        if self._earlier is not None:
            self._earlier.close()
        self.store.close()

    def _complete(self) -> Iterator[Chunk]:
        """The complete chunks of this process, except those that are open again."""
        for number, chunk in self.store.chunks.items():
            if number not in self._open and self.store.owns(number):
                yield chunk

    def _complete_chunk(self, number: int) -> CompleteChunk:
        """The comparison of a complete chunk with the input. One is open at a time."""
        if self._compared is None or self._compared[0] != number:
            if self._compared is not None:
                self._compared[1].records.close()
            self._compared = number, self.store.compare(number)
        return self._compared[1]

    def _is_stale(self, row_index: int, row: Row) -> bool:
        """Whether a journaled row is in the output already, or is to be made again."""
        number, index = divmod(row_index, self._chunk_rows)
        if number in self._open:
            saved = self._open[number].file.rows
        else:
            saved = self.store.chunks[number].rows if number in self.store.chunks else 0
        return index < saved or (self._retry and row.get("error") is not None)

    def _begin(self) -> None:
        if not self._is_begun:
            self._state.begin()
            self.store.begin()
            self._is_begun = True

    def _open_chunk(self, number: int) -> OpenChunk:
        chunk = self._open[number] = self.store.open(number)
        self.torn += chunk.file.torn
        return chunk

    def _finish_chunk(self, chunk: OpenChunk) -> None:
        """Move the chunk to the store.

        A chunk not all of whose rows were compared with the input, as with a limit, stays open.
        """
        if not chunk.file.is_compared:
            return
        if chunk.previous is not None:
            chunk.previous.check_end(chunk.file.rows)
        if self.store.finish_chunk(chunk):
            del self._open[chunk.number]

    def _sync(self) -> None:
        """Flush all rows to disk and write how far the run has come."""
        self._synced_at = monotonic()
        progress, rows = self._state.progress, self.rows
        if not rows and not self._state.resumes:
            return
        progress.rows, progress.errors = rows, dict(self.errors)
        if not self._retry:
            progress.chunk, progress.safe = 0, FileCheckpoint()
        for chunk in self._open.values():
            checkpoint = chunk.file.sync()
            if chunk.previous is None:  # otherwise the file is not the one that is resumed
                progress.chunk, progress.safe = chunk.number, checkpoint
        self._pending.sync()
        self._state.save_progress(durable=True)
