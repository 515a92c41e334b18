"""Schedule sequences: which ones are prefilled, scored or decoded next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Literal, NamedTuple

from pgcli.engine.memory import BatchLimits
from pgcli.engine.sequence import Sequence

#: Waiting sequences join once this fraction of the rows is free, or enough rows for all of them.
MIN_REFILL_FRACTION = 0.25
#: Rows of the first group of a run that starts small.
FIRST_ROWS = 4


class Batch(NamedTuple):
    """The next call of the model: a group to prefill or to score, or all rows to decode."""

    kind: Literal["prefill", "decode", "score"]
    sequences: list[Sequence]


class RequestQueue:
    """Sequences that wait for their prefill, in groups of up to `size`; at most `window` wait.

    A group starts with the oldest sequence and is filled with prompts of the same length, which
    need no padding and no mask. If the window is full or no more input comes, the nearest lengths
    complete it. Groups depend only on the order of arrival, and a sequence waits for fewer than
    `window` groups.
    """

    def __init__(self, *, size: int, window: int):
        self.size = size
        self.window = window
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, sequence: Sequence) -> None:
        self._sequences.append(sequence)

    def clear(self) -> None:
        self._sequences.clear()

    def is_due(self) -> bool:
        """Whether a group is complete before more input arrives."""
        if len(self) >= self.window:
            return True
        if len(self) < self.size:
            return False
        oldest = len(self._sequences[0].prompt_ids)
        return sum(len(sequence.prompt_ids) == oldest for sequence in self._sequences) >= self.size

    def take(self, size: int | None = None) -> list[Sequence]:
        """Remove and return the oldest sequence and those nearest to it in prompt length."""
        oldest = len(self._sequences[0].prompt_ids)
        by_distance = sorted(self._sequences, key=lambda row: abs(len(row.prompt_ids) - oldest))
        group = by_distance[: size or self.size]
        taken = set(group)
        self._sequences = [sequence for sequence in self._sequences if sequence not in taken]
        return group


class Scheduler:
    """Holds all sequences until they finish, and selects the next batch.

    A sequence waits in the queue, then in `_ready` with its group, then runs. OOM halves the most
    rows at once, and the rows of the batch wait again, in order: the group that was to join, or all
    rows of a decode step. Per-sequence random streams make the retried tokens identical. A sequence
    that runs out of memory alone twice is `out_of_memory`. Once `should_stop()` is true, only
    sequences that have run finish. If `first_rows` is not 0, the first group has so many sequences
    and finishes before others join: its rows do not wait for further images.
    """

    def __init__(
        self,
        queue: RequestQueue,
        limits: BatchLimits,
        *,
        max_rows: int,
        should_stop: Callable[[], bool] = lambda: False,
        first_rows: int = 0,
    ):
        self.running: list[Sequence] = []
        self._queue = queue
        self._ready: deque[Sequence] = deque()
        self._limits = limits
        self._max_rows = max_rows
        self._should_stop = should_stop
        self._is_open = True
        self._first_rows = first_rows
        self._runs_first_group = False

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence to the queue."""
        self._queue.add(sequence)

    def close(self) -> None:
        """Mark the end of the input, so that incomplete groups run too."""
        self._is_open = False

    def schedule(self) -> Batch | None:
        """The next group if enough rows are free for it, else a decode step of all rows.

        None if nothing can run before more input arrives: an incomplete group waits for it, and
        so do running rows.
        """
        if self._should_stop():
            self._queue.clear()
            self._ready = deque(row for row in self._ready if row.status == "preempted")
            self._is_open = False
        self._runs_first_group &= bool(self.running or self._ready)
        if self._first_rows and len(self._queue) >= self._first_rows:
            self._ready.extend(self._queue.take(self._first_rows))
            self._first_rows, self._runs_first_group = 0, True
        elif self._is_due():
            self._ready.extend(self._queue.take())
        waits_for_input = self._is_open and not self._runs_first_group
        if not self._ready and (not self.running or waits_for_input):
            return None
        group = self._next_group()
        if not group:
            return Batch("decode", list(self.running))
        for _ in group:
            self._ready.popleft()
        self.running += group
        return Batch("score" if group[0].candidates else "prefill", group)

    def _is_due(self) -> bool:
        """Whether the next group is taken from the queue."""
        if self._ready or not self._queue or self._runs_first_group:
            return False
        return self._queue.is_due() or not self._is_open

    def _next_group(self) -> list[Sequence]:
        """The sequences that join the batch next; empty until enough rows are free for them.

        Free rows waste a share of each decode step; small groups waste prefill passes.
        """
        if not self._ready:
            return []
        first = self._ready[0]
        max_running = min(self._max_rows, self._limits.rows)
        size = 1 if first.failed_alone else max_running
        alike = takewhile(lambda row: bool(row.candidates) == bool(first.candidates), self._ready)
        group = list(islice(alike, size))
        free = max_running - len(self.running)
        enough = min(len(group), max(1, round(MIN_REFILL_FRACTION * max_running)))
        return group[:free] if free >= enough else []

    def on_out_of_memory(self, batch: Batch) -> list[Sequence]:
        """Halve the limit of rows and return the preempted sequences.

        Those that have not ended run again first.
        """
        preempted = [sequence for sequence in batch.sequences if not sequence.has_ended]
        self._limits.shrink(len(self.running))
        if len(preempted) == len(self.running) == 1:
            preempted[0].failed_alone += 1
            if preempted[0].failed_alone == 2:
                preempted[0].status = "out_of_memory"
        again = [sequence for sequence in preempted if not sequence.has_ended]
        for sequence in again:
            if batch.kind == "decode":
                sequence.status = "preempted"
            sequence.restart()
        removed = set(again)
        self.running = [sequence for sequence in self.running if sequence not in removed]
        self._ready.extendleft(reversed(again))
        return preempted

    def pop_finished(self) -> Iterator[Sequence]:
        """Remove and return the finished sequences."""
        ended = [sequence for sequence in self.running if sequence.has_ended]
        if ended:
            self.running = [sequence for sequence in self.running if not sequence.has_ended]
        return iter(ended)
