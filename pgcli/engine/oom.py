"""Out of memory: recognise it, free what the failed work held, and limit the batches to come."""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from pgcli.errors import NoUsableDevice

Input = TypeVar("Input")
Result = TypeVar("Result")

#: Parts of a RuntimeError's message where PyTorch has no type for it.
OOM_MESSAGES = (
    "DefaultCPUAllocator",
    "out of memory",  # CUDA's driver, called by a library; Apple's GPU
    "CUBLAS_STATUS_ALLOC_FAILED",
)
BATCHES_BEFORE_GROWTH = 64  # of the largest size, one after the other
GROWTH = 1.25
MAX_LOST_AT_START = 3  # rows lost before any is answered


def is_oom(error: BaseException) -> bool:
    """Whether memory ran out, and nothing else.

    An illegal access or a failed assertion on a GPU does not count: the device is unusable after.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in OOM_MESSAGES)


def catch_oom(work: Callable[[], Result]) -> Result | None:
    """The result of `work`; None where memory ran out, and then what it had taken is free again."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
    # only here, after the `except`: its traceback held the failed pass's tensors
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return None


@contextmanager
def memory_named(purpose: str, remedy: str) -> Iterator[None]:
    """Run a block that takes memory for `purpose`; NoUsableDevice where memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
        raise NoUsableDevice(f"the device has no memory left for {purpose}", hint=remedy) from error


@dataclass(eq=False, slots=True)
class Limit:
    """The most rows at once: unlimited until memory runs out, then half of what failed.

    It grows again slowly, and never to a size that failed twice. `least` is the lowest it has been.
    """

    now: int = sys.maxsize
    least: int = sys.maxsize
    _failures: Counter[int] = field(default_factory=Counter)
    _successes: int = 0

    @property
    def most(self) -> int:
        """The largest size that failed."""
        return max(self._failures, default=0)

    def state_dict(self) -> dict[str, Any]:
        """The limit as plain values; empty where memory never ran out."""
        if not self._failures:
            return {}
        failures = {str(rows): times for rows, times in self._failures.items()}
        return {"now": self.now, "failures": failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start from the `state_dict` of another process on the same device."""
        self.now = max(1, int(state.get("now", self.now)))
        self._failures.update({int(rows): n for rows, n in state.get("failures", {}).items()})

    def failed(self, rows: int) -> None:
        """Limit to half of this many rows, for which there was no memory."""
        self._failures[rows] += 1
        self._successes = 0
        self.now = min(self.now, max(1, rows // 2))
        self.least = min(self.least, self.now)

    def succeeded(self, rows: int) -> None:
        """Count a batch for which there was memory, if it was as large as the limit."""
        if rows < self.now:
            return
        self._successes += 1
        if self._successes == BATCHES_BEFORE_GROWTH:
            self._successes = 0
            refused = (rows - 1 for rows, times in self._failures.items() if times > 1)
            self.now = max(self.now, min([math.ceil(GROWTH * self.now), *refused]))


@dataclass(eq=False, slots=True)
class BatchLimits:
    """How many rows found memory, kept for the life of an engine.

    The rows that run `at_once`, those whose images and prompts are `read` together, and those whose
    candidates are `scored` together. With `is_fixed`, as in a measurement, batches never shrink.
    """

    at_once: Limit = field(default_factory=Limit)
    read: Limit = field(default_factory=Limit)
    scored: Limit = field(default_factory=Limit)
    is_fixed: bool = False
    _has_answered: bool = False
    _lost: int = 0

    def check_may_shrink(self, rows: int) -> None:
        """Raise NoUsableDevice where batches are fixed."""
        if self.is_fixed:
            raise NoUsableDevice(
                f"the device has no memory left for {rows} rows at once",
                hint="--batch-size with a smaller number",
            )

    def count_row(self, *, is_lost: bool) -> None:
        """Count an answered row, or one for which there is no memory even alone.

        Raises NoUsableDevice where the first few rows are all lost, as then every row would be.
        """
        if not is_lost:
            self._has_answered = True
            return
        self._lost += 1
        if self._lost >= MAX_LOST_AT_START and not self._has_answered:
            raise NoUsableDevice(
                "the device has no memory left for even one row",
                hint="free some, take --dtype bfloat16, name a smaller model or another --device",
            )

    def state_dict(self) -> dict[str, Any]:
        """The limits as plain values, for the next process on the same device."""
        limits = {"at_once": self.at_once, "read": self.read, "scored": self.scored}
        return {name: state for name, limit in limits.items() if (state := limit.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start from the `state_dict` of another process."""
        limits = {"at_once": self.at_once, "read": self.read, "scored": self.scored}
        for name, limit in limits.items():
            limit.load_state_dict(state.get(name, {}))

    def summary(self) -> str:
        """How far batches shrank; empty where memory never ran out."""
        limits = (
            (self.at_once, "rows at once"),
            (self.read, "read together"),
            (self.scored, "scored together"),
        )
        return ", ".join(
            f"{limit.least} {kind} instead of {limit.most}"
            for limit, kind in limits
            if limit.least < sys.maxsize
        )


def run_in_chunks(
    work: Callable[[Sequence[Input]], Sequence[Result]], inputs: Sequence[Input]
) -> Iterator[Result | None]:
    """What `work` makes of each input, in order, with chunks halved where memory runs out.

    None for an input that finds no memory alone.
    """
    limit, left = Limit(), list(inputs)
    while left:
        chunk = left[: limit.now]
        results: Sequence[Result | None] | None = catch_oom(partial(work, chunk))
        if results is None and len(chunk) > 1:
            limit.failed(len(chunk))
            continue
        yield from results or [None]
        del left[: len(chunk)]
