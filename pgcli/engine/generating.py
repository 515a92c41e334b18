"""Groups of requests -> their rows, generated while others join, within the memory there is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch

from pgcli.engine.batch_limits import BatchLimits, Limit, run_in_chunks
from pgcli.engine.batches import Request
from pgcli.engine.generate import Running
from pgcli.engine.image_cache import ImageFeatureCache
from pgcli.engine.oom import catch_oom
from pgcli.engine.output import Blank, Placed, Telling, oom_answer
from pgcli.engine.sequence import Growing
from pgcli.engine.trial import Trial
from pgcli.errors import NoUsableDevice
from pgcli.records import Answer

#: Rows wait till so many of all places are free for them, or room for all that wait.
SHARE_THAT_JOINS = 0.25


@dataclass(eq=False, slots=True)
class Asked:
    """A request till it is answered, with the time that it took, also where it had to start over.

    `batch` is how many rows were read with it; `is_last_try` that memory ran out for it alone.
    """

    request: Request
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    batch: int = 0
    is_last_try: bool = False


class Generating:
    """Answers that grow token by token; a row that ends makes room for one that waits.

    Where memory runs out while a group joins, half of it is tried, then the rest, in order; where
    it runs out for one row beside others, these become fewer first. Where it runs out in a step,
    all rows start over, half as many at once: only so is the memory of the others free, and a row's
    tokens follow from its picture, its prompt and its own draws, so that they are the same again.
    """

    def __init__(
        self,
        running: Running,
        features: ImageFeatureCache,
        blank: Blank,
        telling: Telling,
        headroom: BatchLimits,
        trial: Trial | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self._running = running
        self._features = features
        self._blank = blank
        self._telling = telling
        self._headroom = headroom
        self._trial = trial
        self._stopped = stopped
        self._waiting: deque[Asked] = deque()
        self._open: dict[Growing, Asked] = {}

    def answers(self, group: Sequence[Request]) -> Iterator[Placed]:
        """Have the group join; the rows that end before it can, and those that end at once."""
        self._waiting.extend(map(Asked, group))
        while self._waiting and not self._stopped():
            yield from self._next()

    def rest(self) -> Iterator[Placed]:
        """The rows that are still on their way; once stopped, without those that only wait."""
        while self._running.rows or self._waiting:
            if self._stopped():
                self._waiting.clear()
            yield from self._next() if self._running.rows or self._waiting else ()

    @torch.inference_mode()
    def _next(self) -> Iterator[Placed]:
        """Have the first that wait join if there is room for them, or else go on a step."""
        first = self._first()
        yield from self._join(first) if first else self._step()

    def _first(self) -> list[Asked]:
        """Those that are to join together now: none till enough places are free for them.

        A place that is left empty costs every step its share; rows that join alone cost a pass.
        """
        at_once = min(self._running.size, self._headroom.at_once.now)
        free = at_once - len(self._running.rows)
        is_last_try = bool(self._waiting) and self._waiting[0].is_last_try
        most = 1 if is_last_try else min(at_once, self._headroom.read.now)
        group = list(islice(self._waiting, most))
        enough = min(len(group), max(1, round(SHARE_THAT_JOINS * at_once)))
        return group[:free] if free >= enough else []

    def _join(self, group: Sequence[Asked]) -> Iterator[Placed]:
        ended = catch_oom(partial(self._read, group))
        if ended is None:
            yield from self._without_memory_to_join(group)
            return
        self._features.read([one.request for one in group])
        for _ in group:
            self._waiting.popleft()
        self._headroom.read.went_well(len(group))
        self._headroom.at_once.went_well(len(self._open))
        yield from self._told(ended)

    def _read(self, group: Sequence[Asked]) -> list[Growing]:
        """Have the group join; the rows that end at once. Fails as a whole, or not at all."""
        requests = [one.request for one in group]
        patch_BPD, vision_ms = self._features.of(requests)
        begun = self._begun(group)
        ended = self._running.join(patch_BPD, [one.ids for one in requests], begun)
        for one, share in zip(group, vision_ms, strict=True):
            one.vision_ms += share
            one.batch = len(group)
        self._open |= zip(begun, group, strict=True)
        return ended

    def _begun(self, group: Sequence[Asked]) -> list[Growing]:
        requests = [one.request for one in group]
        keys = [f"{one.picture.item.index} {one.prompt}" for one in requests]
        places = [one.place for one in requests]
        lengths = None if self._trial is None else self._trial.lengths_at(places)
        begun = self._running.begun(keys, lengths)
        for row, one in zip(begun, group, strict=True):
            row.prefill_ms, row.decode_ms = one.prefill_ms, one.decode_ms
        return begun

    def _step(self) -> Iterator[Placed]:
        ended = catch_oom(self._running.step)
        yield from self._start_over() if ended is None else self._told(ended)

    def _without_memory_to_join(self, group: Sequence[Asked]) -> Iterator[Placed]:
        others = len(self._running.rows)
        self._insist_on_memory(len(group) + others)
        if not others:
            self._running.drop()
        if len(group) > 1:
            self._headroom.read.failed(len(group))
        elif others:
            self._headroom.at_once.failed(1 + others)
            self._headroom.read = Limit()  # the group was not to blame
        elif self._is_lost(group[0]):
            self._waiting.popleft()
            self._features.read([group[0].request])
            yield self._given_up(group[0])

    def _start_over(self) -> Iterator[Placed]:
        """Let go of all rows, which wait again in the order in which they joined."""
        self._insist_on_memory(len(self._open))
        rows = list(self._open.values())
        for growing, one in self._open.items():
            one.prefill_ms, one.decode_ms = growing.prefill_ms, growing.decode_ms
        self._open.clear()
        self._running.drop()
        if len(rows) == 1 and self._is_lost(rows[0]):
            yield self._given_up(rows[0])
            return
        if len(rows) > 1:
            self._headroom.at_once.failed(len(rows))
        self._features.read_again([one.request for one in rows])
        self._waiting.extendleft(reversed(rows))

    def _is_lost(self, alone: Asked) -> bool:
        """Whether a row for which alone memory ran out had its last try.

        Else that is to come, when what is kept of pictures takes no memory.
        """
        was_last_try, alone.is_last_try = alone.is_last_try, True
        self._features.let_go()
        return was_last_try

    def _given_up(self, one: Asked) -> Placed:
        self._headroom.lose()
        return one.request.place, oom_answer(self._blank(one.request.picture, one.request.prompt))

    def _insist_on_memory(self, rows: int) -> None:
        """Raise NoUsableDevice in a measurement, whose batches are what they are said to be."""
        if self._trial is not None:
            raise NoUsableDevice(
                f"the device has no memory left for {rows} rows at once",
                hint="--batch-size with a smaller number",
            )

    def _told(self, ended: Sequence[Growing]) -> Iterator[Placed]:
        """The rows that ended, with their answers."""
        asked = [self._open.pop(row) for row in ended]
        if self._trial is not None:
            told = (
                (one.request.place, tuple(row.tokens))
                for one, row in zip(asked, ended, strict=True)
            )
            self._trial.tokens |= told
        rows = list(zip(map(self._row, asked), ended, strict=True))
        for one, (_, answer) in zip(
            asked, run_in_chunks(self._telling.answers, rows, Limit()), strict=True
        ):
            if answer is None:
                yield self._given_up(one)
                continue
            self._headroom.has_answered = True
            yield one.request.place, answer

    def _row(self, one: Asked) -> Answer:
        """The request's row as far as it is known before its answer."""
        blank = self._blank(one.request.picture, one.request.prompt)
        return replace(blank, vision_ms=one.vision_ms, batch=one.batch)
