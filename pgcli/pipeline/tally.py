"""What a run did so far, as counts and sums of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

from pgcli.records import Answer, DecodedImage


@dataclass
class Tally:
    """What a run did so far. The times are sums; `waited_seconds` is the model's for pictures.

    `rows` are those that this run added; `rows_before` those that were there when it began. In
    `seconds` there are none of `paused_seconds`, which whoever watches the run notes here.
    """

    rows: int = 0
    rows_before: int = 0
    pictures: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    paused_seconds: float = 0.0
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


def timed(pictures: Iterable[DecodedImage], tally: Tally) -> Iterator[DecodedImage]:
    """The pictures, counted, and the time that whoever takes them waits for each."""
    started = perf_counter()
    for picture in pictures:
        tally.waited_seconds += perf_counter() - started
        tally.pictures += 1
        yield picture
        started = perf_counter()
    tally.waited_seconds += perf_counter() - started
