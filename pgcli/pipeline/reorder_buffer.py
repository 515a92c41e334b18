"""Puts answers, which arrive in any order, back into the order of their rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from pgcli.records import NOT_READ, PAUSE, Answer, DecodedImage, Item

Decode = Callable[[Iterable[Item]], Iterable[DecodedImage]]
Refuse = Callable[[DecodedImage, str], Answer]

#: After as many consecutive error rows the stream to `ask` ends, and `ask` answers what it holds
#: back. Otherwise a folder of a million broken files would be held in memory before a row is saved.
MAX_REFUSED_RUN = 100


class ResumeLog(Protocol):
    """The rows that a run's output has already, by row index: their position in the whole input."""

    @property
    def rows(self) -> int:
        """The number of rows saved."""

    def is_missing(self, row_index: int, item: Item, prompt: str) -> bool:
        """Whether this run is to save the row. Called once for each row of the input, in order.

        Raises OutputExists if the input is not the one that the saved rows were made from.
        """

    def note_image(self, row_indices: Iterable[int], image: DecodedImage) -> None:
        """Note the decoded image of rows that are to be saved."""

    def is_answered(self, row_index: int) -> bool:
        """Whether an earlier run answered the missing row. Called once."""

    def stored_answer(self, row_index: int) -> Answer:
        """The answer of an earlier run. Called once, when the row is to be saved."""

    def journal(self, row_index: int, answer: Answer) -> None:
        """Store an answer whose row waits for earlier rows."""


class NoResume:
    """The resume log of an output that is not resumed."""

    rows = 0

    def is_missing(self, row_index: int, item: Item, prompt: str) -> bool:
        return True

    def note_image(self, row_indices: Iterable[int], image: DecodedImage) -> None:
        pass

    def is_answered(self, row_index: int) -> bool:
        return False

    def stored_answer(self, row_index: int) -> Answer:
        raise AssertionError("no answer is stored")

    def journal(self, row_index: int, answer: Answer) -> None:
        pass


@dataclass
class RowRange:
    """The row indices from `start` to before `end`."""

    start: int
    end: int
    is_answered: bool


class RowQueue:
    """The row indices to be saved, in order, as ranges: an item may have many prompts."""

    def __init__(self) -> None:
        self._ranges: deque[RowRange] = deque()
        self._lock = threading.Lock()  # items arrive in another thread than the one that saves

    def append(self, start: int, end: int, *, is_answered: bool) -> None:
        """Append the row indices from `start` to before `end`."""
        with self._lock:
            last = self._ranges[-1] if self._ranges else None
            if last is not None and last.end == start and last.is_answered == is_answered:
                last.end = end
            else:
                self._ranges.append(RowRange(start, end, is_answered))

    def peek(self) -> tuple[int, bool] | None:
        """The next row index, and whether an earlier run answered it; None if there is none."""
        with self._lock:
            while self._ranges and self._ranges[0].start == self._ranges[0].end:
                self._ranges.popleft()
            return (self._ranges[0].start, self._ranges[0].is_answered) if self._ranges else None

    def pop(self) -> None:
        """Remove the row index that `peek` returned."""
        with self._lock:
            self._ranges[0].start += 1


class ReorderBuffer:
    """Streams items to `ask` by way of `decode`, and returns rows in input order.

    Only missing rows are asked. Answers of an earlier run are returned in their turn.
    """

    def __init__(
        self,
        items: Iterable[Item],
        decode: Decode,
        refuse: Refuse,
        resume_log: ResumeLog,
        should_stop: Callable[[], bool],
    ):
        self.ended = False
        self._refuse, self._resume_log, self._should_stop = refuse, resume_log, should_stop
        self._queue = RowQueue()
        self._first_rows: deque[int] = deque()  # the first row index of each image being decoded
        self._unanswered: set[int] = set()
        self._answers: dict[int, Answer] = {}
        self.decoded = self._decode(decode, items)

    def _decode(self, decode: Decode, items: Iterable[Item]) -> Generator[DecodedImage, None, None]:
        """The decoded images of missing items; closing it closes what `decode` returned."""
        yield from decode(self._missing_items(items))

    def images(self) -> Iterator[tuple[int, DecodedImage]]:
        """Valid images, each with its first row index, until the end or MAX_REFUSED_RUN.

        They also end at a PAUSE, unless no image has come since they began.
        """
        refused, is_empty = 0, True
        while refused < MAX_REFUSED_RUN:
            image = None if self._should_stop() else next(self.decoded, None)
            if image is None:
                self.ended = True
                return
            if image is PAUSE:
                if is_empty:
                    continue
                return
            is_empty = False
            first, prompts = self._first_rows.popleft(), image.item.prompts
            self._unanswered.update(range(first, first + len(prompts)))
            self._resume_log.note_image(range(first, first + len(prompts)), image)
            if image.fault is None:
                yield first, image
                refused = 0
                continue
            for row_index, prompt in enumerate(prompts, start=first):
                self.add(row_index, self._refuse(image, prompt))
            refused += len(prompts)

    def add(self, row_index: int, answer: Answer) -> None:
        """Add the answer of a row that was asked; journal it if earlier rows are not answered."""
        if row_index not in self._unanswered:
            raise AssertionError(f"row {row_index} was answered twice, or was never asked")
        self._unanswered.remove(row_index)
        self._answers[row_index] = answer
        first = self._queue.peek()
        if first is not None and row_index != first[0]:
            self._resume_log.journal(row_index, answer)

    def pop_ready(self) -> Iterator[Answer]:
        """Remove and return the rows up to the first that is not answered."""
        while (first := self._queue.peek()) is not None:
            row_index, is_answered = first
            if not is_answered and row_index not in self._answers:
                return
            self._queue.pop()
            if is_answered:
                yield self._resume_log.stored_answer(row_index)
            else:
                yield self._answers.pop(row_index)

    def check_complete(self, stream: Iterator[tuple[int, DecodedImage]]) -> None:
        """Raise AssertionError if `ask` returned before it had answered every image."""
        if self._should_stop():
            return
        next(stream, None)  # an image that `ask` did not take is unanswered too
        if self._unanswered:
            raise AssertionError("an image was never answered")

    def _missing_items(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items that have prompts to be asked, with only those prompts."""
        next_row = 0
        for item in items:
            first = next_row if item.row is None else item.row
            next_row = first + len(item.prompts)
            for start, end, is_answered in self._missing_rows(first, item):
                self._queue.append(start, end, is_answered=is_answered)
                if not is_answered:
                    assert item.data is not NOT_READ, f"the image of row {start} was not read"
                    self._first_rows.append(start)
                    prompts = item.prompts[start - first : end - first]
                    yield item if prompts == item.prompts else replace(item, prompts=prompts)

    def _missing_rows(self, first: int, item: Item) -> Iterator[tuple[int, int, bool]]:
        """The missing rows of an item as ranges, either answered by an earlier run or not."""
        log = self._resume_log
        missing = [
            row_index
            for row_index, prompt in enumerate(item.prompts, start=first)
            if log.is_missing(row_index, item, prompt)
        ]
        # consecutive row indices have the same difference from their position in the list
        for (_, is_answered), group in groupby(
            enumerate(missing), lambda pair: (pair[1] - pair[0], log.is_answered(pair[1]))
        ):
            row_indices = [row_index for _, row_index in group]
            yield row_indices[0], row_indices[-1] + 1, is_answered
