"""Answers a stream of items and saves their rows in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from time import perf_counter
from typing import Protocol

from pgcli.pipeline.error_budget import ErrorBudget, ErrorRuns
from pgcli.pipeline.reorder_buffer import Decode, NoResume, Refuse, ReorderBuffer, ResumeLog
from pgcli.pipeline.selection import EvenSample, Selection, first_rows, sample_evenly
from pgcli.pipeline.tally import Tally, count_and_time_waits
from pgcli.records import Answer, DecodedImage, Item

__all__ = [
    "Ask",
    "Decode",
    "ErrorBudget",
    "ErrorRuns",
    "EvenSample",
    "ResumeLog",
    "RunCallback",
    "Save",
    "Selection",
    "Tally",
    "answers",
    "first_rows",
    "run",
    "sample_evenly",
]

Ask = Callable[[Iterable[tuple[int, DecodedImage]]], Iterable[tuple[int, Answer]]]
Save = Callable[[Answer], None]


class RunCallback(Protocol):
    """Progress and stop conditions."""

    def on_row(self, answer: Answer, tally: Tally) -> None:
        """Called after each row is saved. An exception ends the run."""

    def should_stop(self) -> bool:
        """Whether to take no more images; those already taken are finished."""


class NullCallback:
    """A callback that does nothing."""

    def on_row(self, answer: Answer, tally: Tally) -> None:
        pass

    def should_stop(self) -> bool:
        return False


def run(
    items: Iterable[Item],
    decode: Decode,
    ask: Ask,
    save: Save,
    refuse: Refuse,
    *,
    resume_log: ResumeLog | None = None,
    callback: RunCallback | None = None,
) -> Tally:
    """Answer every item and save its row, in input order. A bad image costs one row.

    Rows that the resume log has are neither asked nor saved again. The callback gets the tally
    that is returned, so it is also available after a run that ended early.
    """
    callback, resume_log = callback or NullCallback(), resume_log or NoResume()
    tally = Tally(rows_before=resume_log.rows)
    started = perf_counter()

    def timed_decode(items: Iterable[Item]) -> Iterator[DecodedImage]:
        return count_and_time_waits(decode(items), tally)

    def counted_ask(stream: Iterable[tuple[int, DecodedImage]]) -> Iterator[tuple[int, Answer]]:
        for row_index, answer in ask(stream):
            tally.count_work(answer)
            yield row_index, answer

    rows = answers(
        items,
        timed_decode,
        counted_ask,
        refuse,
        resume_log=resume_log,
        should_stop=callback.should_stop,
    )
    # closed here rather than when the traceback is freed: `decode` may have started processes
    with closing(rows):
        for row in rows:
            save(row)
            tally.count_row(row)
            tally.seconds = perf_counter() - started - tally.paused_seconds
            callback.on_row(row, tally)
    tally.seconds = perf_counter() - started - tally.paused_seconds
    return tally


def answers(
    items: Iterable[Item],
    decode: Decode,
    ask: Ask,
    refuse: Refuse,
    *,
    resume_log: ResumeLog | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Generator[Answer, None, None]:
    """One row per item and prompt, in input order whatever the order of the answers.

    Images that could not be decoded are not passed to `ask`: `refuse` makes their rows. Only rows
    that wait for an earlier one are held. `ask` may be called several times, each time with more
    images. After `should_stop` it may leave images unanswered.
    """
    buffer = ReorderBuffer(items, decode, refuse, resume_log or NoResume(), should_stop)
    with closing(buffer.decoded):
        while not buffer.ended:
            stream = buffer.images()
            for row_index, answer in ask(stream):
                buffer.add(row_index, answer)
                yield from buffer.pop_ready()
            buffer.check_complete(stream)
            yield from buffer.pop_ready()
