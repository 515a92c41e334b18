"""Counts and times of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter

from pgcli.records import PAUSE, Answer, DecodedImage


@dataclass
class Tally:
    """Counts and times of a run so far.

    `rows` are those that this run added, `rows_before` those that were saved when it began. Tokens
    and times are those of rows that it computed.
    `waited_seconds` is the time for which the model waited for images. `seconds` excludes
    `paused_seconds`, which the run's callback sets.
    """

    rows: int = 0
    rows_before: int = 0
    images: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    paused_seconds: float = 0.0
    waited_seconds: float = 0.0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    def add(self, other: Tally) -> None:
        """Add what another tally has counted; times of the run apart."""
        self.rows += other.rows
        self.images += other.images
        self.errors.update(other.errors)
        self.tokens += other.tokens
        self.waited_seconds += other.waited_seconds
        self.vision_ms += other.vision_ms
        self.prefill_ms += other.prefill_ms
        self.decode_ms += other.decode_ms

    def count(self, row: Answer) -> None:
        """Add a row that was computed and saved."""
        self.count_row(row)
        self.count_work(row)

    def count_row(self, row: Answer) -> None:
        """Add a saved row, which an earlier run may have computed."""
        self.rows += 1
        if row.error is not None:
            self.errors[row.error] += 1

    def count_work(self, row: Answer) -> None:
        """Add the tokens and times of a computed row."""
        self.tokens += row.tokens or 0
        self.vision_ms += row.vision_ms or 0.0
        self.prefill_ms += row.prefill_ms or 0.0
        self.decode_ms += row.decode_ms or 0.0


def count_and_time_waits(images: Iterable[DecodedImage], tally: Tally) -> Iterator[DecodedImage]:
    """The images, counted, with the time that the consumer waits for each added to the tally."""
    started = perf_counter()
    with closing(closeable(images)) as closed_on_exit:
        for image in closed_on_exit:
            tally.waited_seconds += perf_counter() - started
            tally.images += image is not PAUSE
            yield image
            started = perf_counter()
    tally.waited_seconds += perf_counter() - started


def closeable(images: Iterable[DecodedImage]) -> Generator[DecodedImage, None, None]:
    """The images as a generator; closing it closes the iterator of the images."""
    yield from images
