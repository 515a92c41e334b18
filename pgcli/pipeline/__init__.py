"""The pipeline: a stream of items in, saved rows out, in order; errors, stopping, resuming."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from pgcli.pipeline.error_budget import ErrorBudget
from pgcli.pipeline.reorder_buffer import Decode, NoResume, Refuse, ReorderBuffer, ResumeLog
from pgcli.pipeline.tally import Tally, timed
from pgcli.records import Answer, DecodedImage, Item

__all__ = [
    "Ask",
    "Decode",
    "ErrorBudget",
    "ResumeLog",
    "Save",
    "Tally",
    "answers",
    "first_rows",
    "run",
    "spread",
]

Ask = Callable[[Iterable[tuple[int, DecodedImage]]], Iterable[tuple[int, Answer]]]
Save = Callable[[Answer], None]


class RunCallback(Protocol):
    """Whoever looks on while a run goes on."""

    def row(self, answer: Answer, tally: Tally) -> None:
        """Told of each row after it is saved. What this raises ends the run."""

    def stopped(self) -> bool:
        """Whether no more pictures are to be taken; what is under way is finished."""


class NullCallback:
    """Looks on and says nothing."""

    def row(self, answer: Answer, tally: Tally) -> None:
        pass

    def stopped(self) -> bool:
        return False


def run(
    items: Iterable[Item],
    look: Decode,
    ask: Ask,
    save: Save,
    refuse: Refuse,
    *,
    ledger: ResumeLog | None = None,
    watch: RunCallback | None = None,
) -> Tally:
    """Answer every item and save its row, in input order. A bad image costs its own row, no other.

    Rows that the ledger has already are neither asked for nor, if they were saved, saved again. The
    tally that `watch` is shown is the one returned, so that it can be read also after a run that
    ended early.
    """
    watch, ledger = watch or NullCallback(), ledger or NoResume()
    tally = Tally(rows_before=ledger.rows)
    started = perf_counter()

    def watched(items: Iterable[Item]) -> Iterator[DecodedImage]:
        return timed(look(items), tally)

    rows = answers(items, watched, ask, refuse, ledger=ledger, stopped=watch.stopped)
    # closed here, not when a traceback is let go: behind `look` there may be processes
    with closing(rows):
        for row in rows:
            save(row)
            tally.count(row)
            tally.seconds = perf_counter() - started - tally.paused_seconds
            watch.row(row, tally)
    tally.seconds = perf_counter() - started - tally.paused_seconds
    return tally


def first_rows(items: Iterable[Item], limit: int) -> Iterator[Item]:
    """The items that make the first `limit` rows; the last may keep only some of its prompts."""
    left = limit
    for item in items if limit > 0 else ():
        yield replace(item, prompts=item.prompts[:left])
        left -= len(item.prompts)
        if left <= 0:
            return


def spread(items: Iterable[Item], total: int, count: int) -> Iterator[Item]:
    """So many of the `total` items, at equal distances, in order; all where there are no more."""
    if count >= total:
        return iter(items)
    return items_at(items, [place * total // count for place in range(count)])


def items_at(items: Iterable[Item], places: Sequence[int]) -> Iterator[Item]:
    """The items at these places, which are in order; those behind the last are not asked for."""
    left = iter(places)
    place = next(left, None)
    for number, item in enumerate(items):
        if number == place:
            yield item
            place = next(left, None)
        if place is None:
            return


def answers(
    items: Iterable[Item],
    look: Decode,
    ask: Ask,
    refuse: Refuse,
    *,
    ledger: ResumeLog | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[Answer, None, None]:
    """One row per item and prompt, in input order whatever the order in which `ask` ends them.

    What could not be looked at never reaches `ask`: `refuse` makes its rows. Only rows that wait
    for an earlier one are held. `ask` may be called several times, each time with more pictures.
    Once `stopped`, it may leave pictures unanswered.
    """
    line = ReorderBuffer(items, look, refuse, ledger or NoResume(), stopped)
    with closing(line.pictures):
        while not line.ended:
            stream = line.good()
            for place, answer in ask(stream):
                line.put(place, answer)
                yield from line.ready()
            line.check(stream)
            yield from line.ready()
