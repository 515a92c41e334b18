"""Handle out-of-memory errors: free memory and limit later batches."""

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

#: Parts of the messages of OOM errors that are plain RuntimeErrors.
OOM_MESSAGES = (
    "DefaultCPUAllocator",
    "out of memory",  # the CUDA driver, called by a library, and MPS
    "CUBLAS_STATUS_ALLOC_FAILED",
)
BATCHES_BEFORE_GROWTH = 64  # consecutive batches of the largest size
GROWTH = 1.25
MAX_LOST_AT_START = 3  # rows lost before any is answered


def is_oom(error: BaseException) -> bool:
    """Whether the error is an out-of-memory error.

    An illegal access or a failed assertion on a GPU is not: the device is unusable after it.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in OOM_MESSAGES)


class OutOfMemory(Exception):
    """Memory ran out; that of the failed call is free again."""


def run_or_free(work: Callable[[], Result], release: Callable[[], object] = lambda: None) -> Result:
    """The result of `work`. Raises OutOfMemory if memory runs out, after a call of `release`."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
    # after the `except` block, because its traceback keeps the failed pass's tensors alive
    release()
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    raise OutOfMemory


@contextmanager
def memory_named(purpose: str, remedy: str) -> Iterator[None]:
    """Convert an OOM error of the block into NoUsableDevice, which names the `purpose`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
        raise NoUsableDevice(f"the device has no memory left for {purpose}", hint=remedy) from error


@dataclass(eq=False, slots=True)
class Limit:
    """A maximum number of rows: unlimited until a batch fails, then half of that batch.

    It grows again slowly, and never to a size that failed twice. `lowest` is its lowest value.
    """

    value: int = sys.maxsize
    lowest: int = sys.maxsize
    _failures: Counter[int] = field(default_factory=Counter)
    _successes: int = 0

    @property
    def largest_failure(self) -> int:
        """The largest size that failed."""
        return max(self._failures, default=0)

    def state_dict(self) -> dict[str, Any]:
        """The limit as JSON values; empty if no batch has failed."""
        if not self._failures:
            return {}
        failures = {str(rows): times for rows, times in self._failures.items()}
        return {"now": self.value, "failures": failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start from the `state_dict` of another process on the same device."""
        self.value = max(1, int(state.get("now", self.value)))
        self._failures.update({int(rows): n for rows, n in state.get("failures", {}).items()})

    def failed(self, rows: int) -> None:
        """Reduce the limit to half of `rows`, a batch that ran out of memory."""
        self._failures[rows] += 1
        self._successes = 0
        self.value = min(self.value, max(1, rows // 2))
        self.lowest = min(self.lowest, self.value)

    def succeeded(self, rows: int) -> None:
        """Count a batch that succeeded, if it was as large as the limit."""
        if rows < self.value:
            return
        self._successes += 1
        if self._successes == BATCHES_BEFORE_GROWTH:
            self._successes = 0
            refused = (rows - 1 for rows, times in self._failures.items() if times > 1)
            self.value = max(self.value, min([math.ceil(GROWTH * self.value), *refused]))


@dataclass(eq=False, slots=True)
class BatchLimits:
    """The batch sizes of an engine, reduced after OOM errors.

    `running` limits the running rows, `prefill` the rows prefilled together, and `score` the rows
    whose candidates are scored together. With `is_fixed`, as in a benchmark, batches never shrink.
    """

    running: Limit = field(default_factory=Limit)
    prefill: Limit = field(default_factory=Limit)
    score: Limit = field(default_factory=Limit)
    is_fixed: bool = False
    _has_answered: bool = False
    _lost: int = 0

    def check_may_shrink(self, rows: int) -> None:
        """Raise NoUsableDevice if the batch size is fixed."""
        if self.is_fixed:
            raise NoUsableDevice(
                f"the device has no memory left for {rows} rows at once",
                hint="--batch-size with a smaller number",
            )

    def count_row(self, *, is_lost: bool) -> None:
        """Count an answered row, or one that is lost because it runs out of memory alone.

        Raises NoUsableDevice if the first `MAX_LOST_AT_START` rows are all lost.
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
        """The limits as JSON values, for the next process on the same device."""
        limits = {"at_once": self.running, "read": self.prefill, "scored": self.score}
        return {name: state for name, limit in limits.items() if (state := limit.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start from the `state_dict` of another process."""
        limits = {"at_once": self.running, "read": self.prefill, "scored": self.score}
        for name, limit in limits.items():
            limit.load_state_dict(state.get(name, {}))

    def summary(self) -> str:
        """The reduced limits as text; empty if memory has not run out."""
        limits = (
            (self.running, "rows at once"),
            (self.prefill, "read together"),
            (self.score, "scored together"),
        )
        return ", ".join(
            f"{limit.lowest} {kind} instead of {limit.largest_failure}"
            for limit, kind in limits
            if limit.lowest < sys.maxsize
        )


def run_in_chunks(
    work: Callable[[Sequence[Input]], Sequence[Result]], inputs: Sequence[Input]
) -> Iterator[Result | None]:
    """The results of `work` for each input, in order; chunks are halved on OOM.

    The result is None for an input that runs out of memory alone.
    """
    limit, left = Limit(), list(inputs)
    while left:
        chunk = left[: limit.value]
        try:
            yield from run_or_free(partial(work, chunk))
        except OutOfMemory:
            if len(chunk) > 1:
                limit.failed(len(chunk))
                continue
            yield None
        del left[: len(chunk)]
