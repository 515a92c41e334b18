"""Rows on their way out: each has a place from the start and leaves after those before it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from pgcli.records import Answer, DecodedImage, Item

Decode = Callable[[Iterable[Item]], Iterable[DecodedImage]]
Refuse = Callable[[DecodedImage, str], Answer]

#: So many error rows in a row end the stream to `ask`, which then answers what it holds back.
#: Without it a folder of a million broken files would be gathered in memory before a row leaves.
MAX_REFUSED_RUN = 100


class ResumeLog(Protocol):
    """What is there already of a run's rows, by their places in the whole of the input."""

    @property
    def rows(self) -> int:
        """How many rows are saved."""

    def is_due(self, place: int, item: Item, prompt: str) -> bool:
        """Whether the row is to leave in this run. Asked once for each row of the input, in order.

        Raises OutputExists where the input is not what it was when its rows were saved.
        """

    def is_known(self, place: int) -> bool:
        """Whether a due row needs no asking, as it was answered before."""

    def row(self, place: int) -> Answer:
        """The known row; taken once, when it leaves."""

    def wait(self, place: int, answer: Answer) -> None:
        """Told of an answer that has to wait for earlier ones."""


class NoResume:
    """The ledger of a run that begins and keeps nothing."""

    rows = 0

    def is_due(self, place: int, item: Item, prompt: str) -> bool:
        return True

    def is_known(self, place: int) -> bool:
        return False

    def row(self, place: int) -> Answer:
        raise AssertionError("no row is known")

    def wait(self, place: int, answer: Answer) -> None:
        pass


@dataclass
class RowRange:
    """Places that leave one after the other, from `start` to before `end`."""

    start: int
    end: int
    is_known: bool


class Queue:
    """The places that are due, in order: added where items come, taken where rows leave."""

    def __init__(self) -> None:
        self._stretches: deque[RowRange] = deque()
        self._lock = threading.Lock()  # items come in another thread than the one that saves

    def add(self, start: int, end: int, *, is_known: bool) -> None:
        with self._lock:
            last = self._stretches[-1] if self._stretches else None
            if last is not None and last.end == start and last.is_known == is_known:
                last.end = end
            else:
                self._stretches.append(RowRange(start, end, is_known))

    def head(self) -> tuple[int, bool] | None:
        """The next place that is to leave, and whether its row is known."""
        with self._lock:
            return (first.start, first.is_known) if (first := self._first()) else None

    def leave(self) -> None:
        """The head has left."""
        with self._lock:
            self._stretches[0].start += 1

    def _first(self) -> RowRange | None:
        while self._stretches and self._stretches[0].start == self._stretches[0].end:
            self._stretches.popleft()
        return self._stretches[0] if self._stretches else None


class ReorderBuffer:
    """Items on their way to `ask`, and the rows that come of them, in order.

    Rows that the ledger has are not asked for again; they take their turn among the others.
    """

    def __init__(
        self,
        items: Iterable[Item],
        look: Decode,
        refuse: Refuse,
        ledger: ResumeLog,
        stopped: Callable[[], bool],
    ):
        self.ended = False
        self._refuse = refuse
        self._ledger = ledger
        self._stopped = stopped
        self._queue = Queue()
        self._firsts: deque[int] = deque()  # of each picture, the place of its first row
        self._unanswered: set[int] = set()
        self._waiting: dict[int, Answer] = {}
        # a generator of ours, to be closed
        self.pictures = (picture for picture in look(self._asked(items)))

    def good(self) -> Iterator[tuple[int, DecodedImage]]:
        """Pictures to ask about, each with the place of its first row, till the end or PATIENCE."""
        refused = 0
        while refused < MAX_REFUSED_RUN:
            picture = None if self._stopped() else next(self.pictures, None)
            if picture is None:
                self.ended = True
                return
            first, prompts = self._firsts.popleft(), picture.item.prompts
            self._unanswered.update(range(first, first + len(prompts)))
            if picture.fault is None:
                yield first, picture
                refused = 0
                continue
            for place, prompt in enumerate(prompts, start=first):
                self.put(place, self._refuse(picture, prompt))
            refused += len(prompts)

    def put(self, place: int, answer: Answer) -> None:
        """Take the answer of a place that was asked about."""
        if place not in self._unanswered:
            raise AssertionError(f"place {place} was answered twice, or never asked about")
        self._unanswered.remove(place)
        self._waiting[place] = answer
        head = self._queue.head()
        if head is not None and place != head[0]:
            self._ledger.wait(place, answer)

    def ready(self) -> Iterator[Answer]:
        """The rows whose turn it is."""
        while (head := self._queue.head()) is not None:
            place, is_known = head
            if not is_known and place not in self._waiting:
                return
            self._queue.leave()
            yield self._ledger.row(place) if is_known else self._waiting.pop(place)

    def check(self, stream: Iterator[tuple[int, DecodedImage]]) -> None:
        """Raise AssertionError where `ask` came to its end with something left unanswered."""
        if self._stopped():
            return
        next(stream, None)  # what `ask` did not take has its place too, and is missed below
        if self._unanswered:
            raise AssertionError("a picture was asked about and never answered")

    def _asked(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each with the prompts that are to be asked, and only those that have any."""
        place = 0
        for item in items:
            first, place = place, place + len(item.prompts)
            for start, end, is_known in self._due(first, item):
                self._queue.add(start, end, is_known=is_known)
                if not is_known:
                    self._firsts.append(start)
                    asked = item.prompts[start - first : end - first]
                    yield item if asked == item.prompts else replace(item, prompts=asked)

    def _due(self, first: int, item: Item) -> Iterator[tuple[int, int, bool]]:
        """Those of the item's rows that are due, in stretches either known or not."""
        ledger = self._ledger
        due = [
            place
            for place, prompt in enumerate(item.prompts, start=first)
            if ledger.is_due(place, item, prompt)
        ]
        # places that follow each other keep the same distance from their numbers
        for (_, is_known), stretch in groupby(
            enumerate(due), lambda one: (one[1] - one[0], ledger.is_known(one[1]))
        ):
            places = [place for _, place in stretch]
            yield places[0], places[-1] + 1, is_known
