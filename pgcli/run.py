"""The pipeline: a stream of items in, saved rows out, in order; errors, stopping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal

from pgcli.errors import TooManyErrors
from pgcli.records import Answer, Item, Picture

Look = Callable[[Iterable[Item]], Iterable[Picture]]
Ask = Callable[[Iterable[tuple[int, Picture]]], Iterable[tuple[int, Answer]]]
Refuse = Callable[[Picture, str], Answer]
Save = Callable[[Answer], None]

#: So many error rows in a row end the stream to `ask`, which then answers what it holds back.
#: Without it a folder of a million broken files would be gathered in memory before a row leaves.
PATIENCE = 100


@dataclass
class Tally:
    """What a run did so far. The times are sums; `waited_seconds` is the model's for pictures."""

    rows: int = 0
    pictures: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    def count(self, row: Answer) -> None:
        self.rows += 1
        if row.error is not None:
            self.errors[row.error] += 1
        self.tokens += row.tokens or 0
        self.vision_ms += row.vision_ms or 0.0
        self.prefill_ms += row.prefill_ms or 0.0
        self.decode_ms += row.decode_ms or 0.0


def run(
    items: Iterable[Item],
    look: Look,
    ask: Ask,
    save: Save,
    refuse: Refuse,
    *,
    on_row: Callable[[Answer, Tally], None] = lambda row, tally: None,
    on_error: Literal["record", "stop"] = "record",
) -> Tally:
    """Answer every item and save its row, in input order. A bad image costs its own row, no other.

    `on_row` is told of each row after it is saved; the tally it is given is the one returned, so
    that it can be read also after a run that ended early. With `on_error="stop"` the first error
    row is still saved, and TooManyErrors raised.
    """
    tally = Tally()
    started = perf_counter()

    def watched(items: Iterable[Item]) -> Iterator[Picture]:
        return timed(look(items), tally)

    # closed here, not when a traceback is let go: behind `look` there may be processes
    with closing(answers(items, watched, ask, refuse)) as rows:
        for row in rows:
            save(row)
            tally.count(row)
            tally.seconds = perf_counter() - started
            on_row(row, tally)
            if row.error is not None and on_error == "stop":
                raise TooManyErrors(
                    f"stopped at the first error, after {tally.rows - 1} answered rows: "
                    f"{row.id}: {row.error}: {row.error_message}",
                    hint="mend or leave out the picture, or go on past it: --on-error record",
                )
    tally.seconds = perf_counter() - started
    return tally


def first_rows(items: Iterable[Item], limit: int) -> Iterator[Item]:
    """The items that make the first `limit` rows; the last may keep only some of its prompts."""
    left = limit
    for item in items if limit > 0 else ():
        yield replace(item, prompts=item.prompts[:left])
        left -= len(item.prompts)
        if left <= 0:
            return


def answers(
    items: Iterable[Item], look: Look, ask: Ask, refuse: Refuse
) -> Generator[Answer, None, None]:
    """One row per item and prompt, in input order whatever the order in which `ask` ends them.

    What could not be looked at never reaches `ask`: `refuse` makes its rows. Only rows that wait
    for an earlier one are held. `ask` may be called several times, each time with more pictures.
    """
    pictures = (picture for picture in look(items))  # a generator of ours, to be closed
    with closing(pictures):
        line = Line(pictures, refuse)
        while not line.ended:
            stream = line.good()
            for place, answer in ask(stream):
                line.put(place, answer)
                yield from line.ready()
            line.check(stream)
            yield from line.ready()


class Line:
    """Rows on their way out: each has a place from the start and leaves after those before it."""

    def __init__(self, pictures: Iterator[Picture], refuse: Refuse):
        self.pictures = pictures
        self.refuse = refuse
        self.ended = False
        self.places = 0
        self.next = 0
        self.waiting: dict[int, Answer] = {}

    def good(self) -> Iterator[tuple[int, Picture]]:
        """Pictures to ask about, each with the place of its first row, till the end or PATIENCE."""
        refused = 0
        for picture in self.pictures:
            first, self.places = self.places, self.places + len(picture.item.prompts)
            if picture.fault is None:
                yield first, picture
                refused = 0
                continue
            for place, prompt in enumerate(picture.item.prompts, start=first):
                self.waiting[place] = self.refuse(picture, prompt)
            refused += len(picture.item.prompts)
            if refused >= PATIENCE:
                return
        self.ended = True

    def put(self, place: int, answer: Answer) -> None:
        if not self.next <= place < self.places or place in self.waiting:
            raise AssertionError(f"place {place} was answered twice, or never asked about")
        self.waiting[place] = answer

    def ready(self) -> Iterator[Answer]:
        while self.next in self.waiting:
            yield self.waiting.pop(self.next)
            self.next += 1

    def check(self, stream: Iterator[tuple[int, Picture]]) -> None:
        """Raise AssertionError where `ask` came to its end with something left unanswered."""
        next(stream, None)  # what `ask` did not take has its place too, and is missed below
        if self.next + len(self.waiting) != self.places:
            raise AssertionError("a picture was asked about and never answered")


def timed(pictures: Iterable[Picture], tally: Tally) -> Iterator[Picture]:
    """The pictures, counted, and the time that whoever takes them waits for each."""
    started = perf_counter()
    for picture in pictures:
        tally.waited_seconds += perf_counter() - started
        tally.pictures += 1
        yield picture
        started = perf_counter()
    tally.waited_seconds += perf_counter() - started
