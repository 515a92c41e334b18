"""Handle out-of-memory errors: free memory and limit later batches."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

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
MAX_LOST_AT_START = 3  # rows lost before any is answered


def is_oom(error: BaseException) -> bool:
    """Whether the error is an out-of-memory error.

    An illegal access or a failed assertion on a GPU is not: the device is unusable after it.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in OOM_MESSAGES)


class OutOfMemory(Exception):
    """Memory ran out; the memory of the failed call is free again."""


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
class BatchLimits:
    """The most `rows` at once, halved when a batch of so many runs out of memory.

    `failed` is the largest batch that did, 0 if none has. With `is_fixed`, as in a benchmark,
    batches never shrink.
    """

    rows: int = sys.maxsize
    failed: int = 0
    is_fixed: bool = False
    _has_answered: bool = False
    _lost: int = 0

    def shrink(self, rows: int) -> None:
        """Halve the limit, after a batch of `rows`. Raises NoUsableDevice if it is fixed."""
        if self.is_fixed:
            raise NoUsableDevice(
                f"the device has no memory left for {rows} rows at once",
                hint="use a smaller <--batch-size=>",
            )
        if rows > 1:
            self.failed = max(self.failed, rows)
            self.rows = min(self.rows, rows // 2)

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
                hint="free some memory, or use <--dtype bfloat16>, a smaller model or another "
                "<--device=>",
            )

    def summary(self) -> str:
        """The reduced limit as text; empty if memory has not run out in this process."""
        return f"{self.rows} rows at once instead of {self.failed}" if self.failed else ""


def run_in_chunks(
    work: Callable[[Sequence[Input]], Sequence[Result]], inputs: Sequence[Input]
) -> Iterator[Result | None]:
    """The results of `work` for each input, in order; chunks are halved on OOM.

    The result is None for an input that runs out of memory alone.
    """
    remaining = list(inputs)
    size = len(remaining)
    while remaining:
        chunk = remaining[:size]
        try:
            yield from run_or_free(partial(work, chunk))
        except OutOfMemory:
            if len(chunk) > 1:
                size = len(chunk) // 2
                continue
            yield None
        del remaining[: len(chunk)]
