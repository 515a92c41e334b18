"""Batches halved where memory runs out, and how large they may be, remembered for the process."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pgcli.engine.oom import catch_oom
from pgcli.errors import NoUsableDevice

Thing = TypeVar("Thing")
Made = TypeVar("Made")

GOOD_GROUPS = 64  # so many of the largest size, one after the other, before a larger one is tried
GROWTH = 1.25
HOPELESS = 3  # so many rows lost, and none ever answered, and no other is tried


@dataclass(eq=False, slots=True)
class Limit:
    """How many rows at most: without limit till memory runs out, then half of what failed.

    It is raised again with care, and never to a size that failed twice. `least` is the lowest that
    it has been, `most` the largest that failed.
    """

    now: int = sys.maxsize
    least: int = sys.maxsize
    _failures: Counter[int] = field(default_factory=Counter)
    _good: int = 0

    @property
    def most(self) -> int:
        return max(self._failures, default=0)

    def state_dict(self) -> dict[str, Any]:
        """What was learnt, as plain values; nothing where memory never ran out."""
        if not self._failures:
            return {}
        failures = {str(rows): times for rows, times in self._failures.items()}
        return {"now": self.now, "failures": failures}

    def load_state_dict(self, known: Mapping[str, Any]) -> None:
        """Begin where another process on the same device was, whose `known` this is."""
        self.now = max(1, int(known.get("now", self.now)))
        self._failures.update({int(rows): n for rows, n in known.get("failures", {}).items()})

    def failed(self, rows: int) -> None:
        """Take half of so many rows, for which there was no memory, for the most."""
        self._failures[rows] += 1
        self._good = 0
        self.now = min(self.now, max(1, rows // 2))
        self.least = min(self.least, self.now)

    def went_well(self, rows: int) -> None:
        """Count a group for which there was memory, where it was as large as may be."""
        if rows < self.now:
            return
        self._good += 1
        if self._good == GOOD_GROUPS:
            self._good = 0
            refused = (rows - 1 for rows, times in self._failures.items() if times > 1)
            self.now = max(self.now, min([math.ceil(GROWTH * self.now), *refused]))


@dataclass(eq=False, slots=True)
class BatchLimits:
    """What an engine has learnt of its memory, for as long as it lives.

    The rows that go on `at_once`, those whose pictures and prompts are `read` together, and those
    whose candidates are `scored` together.
    """

    at_once: Limit = field(default_factory=Limit)
    read: Limit = field(default_factory=Limit)
    scored: Limit = field(default_factory=Limit)
    has_answered: bool = False
    _lost: int = 0

    def lose(self) -> None:
        """Count a row for which alone there is no memory.

        Raises NoUsableDevice where the first few rows are such: then all are, and a million of them
        would help nobody.
        """
        self._lost += 1
        if self._lost >= HOPELESS and not self.has_answered:
            raise NoUsableDevice(
                "the device has no memory left for even one row",
                hint="free some, take --dtype bfloat16, name a smaller model or another --device",
            )

    def state_dict(self) -> dict[str, Any]:
        """What was learnt, as plain values, for the next process on the same device."""
        caps = {"at_once": self.at_once, "read": self.read, "scored": self.scored}
        return {name: known for name, cap in caps.items() if (known := cap.state_dict())}

    def load_state_dict(self, known: Mapping[str, Any]) -> None:
        """Take over what another process learnt."""
        for name, cap in (("at_once", self.at_once), ("read", self.read), ("scored", self.scored)):
            cap.load_state_dict(known.get(name, {}))

    def summary(self) -> str:
        """How far batches shrank, in words; empty where memory never ran out for one."""
        caps = (
            (self.at_once, "rows at once"),
            (self.read, "read together"),
            (self.scored, "scored together"),
        )
        return ", ".join(
            f"{cap.least} {what} instead of {cap.most}"
            for cap, what in caps
            if cap.least < sys.maxsize
        )


def run_in_chunks(
    work: Callable[[Sequence[Thing]], Sequence[Made]],
    things: Sequence[Thing],
    cap: Limit,
    let_go: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Thing, Made | None]]:
    """Each thing, in order, with what the work makes of it, as many at once as find memory.

    A thing that finds none alone is tried once more after `let_go`, and then stands with None.
    """
    left = list(things)
    while left:
        some = left[: cap.now]
        made: Sequence[Made | None] | None = catch_oom(partial(work, some))
        if made is None and len(some) > 1:
            cap.failed(len(some))
            continue
        if made is None:
            let_go()
            made = catch_oom(partial(work, some))
        else:
            cap.went_well(len(some))
        yield from zip(some, made or [None], strict=True)
        del left[: len(some)]
