"""The processes that torchrun starts for a training run: each computes a part of every update.

Gradients are summed after the backward pass instead of by DistributedDataParallel during it. So a
process may use another number of micro-batches than the others, halve them when memory runs out, or
have no readable image.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous

from pgcli.errors import NoUsableDevice, PgcliError, UsageError
from pgcli.training.rows import seed_of

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Row = TypeVar("Row")
Result = TypeVar("Result")

#: Of one collective operation; torchrun detects dead processes sooner.
TIMEOUT = timedelta(minutes=30)
POLL_SECONDS = 0.02
FAILED = "failed"


class OtherProcessFailed(Exception):
    """Another process of the run has failed, and has printed why."""

    def __init__(self, exit_code: int):
        super().__init__("another process of the run has failed")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Processes:
    """The rank of this process among all; without `store`, it is alone."""

    rank: int = 0
    count: int = 1
    store: Store | None = None
    _calls: Iterator[int] = field(default_factory=itertools.count)

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group for losses over all rows; None for a single process."""
        return None if self.store is None else dist.group.WORLD

    def join(self, device: str) -> None:
        """Connect to the other processes; with `device` auto or cuda, each uses its own GPU.

        Raises UsageError for a device other than auto, cuda and cpu, and NoUsableDevice if this
        machine has fewer GPUs than processes.
        """
        uses_cuda = device in ("auto", "cuda") and torch.cuda.is_available()
        if uses_cuda:
            number, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
            if number >= gpus:
                raise NoUsableDevice(
                    f"there is no GPU for each process: this machine has {gpus}",
                    hint=f"torchrun --nproc-per-node {gpus}",
                )
            torch.cuda.set_device(number)
        elif device not in ("auto", "cuda", "cpu"):
            raise UsageError(
                f"<--device {device}> is one device, and torchrun has started several processes",
                hint="remove <--device=>: each process uses its own GPU",
            )
        assert self.store is not None
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if uses_cuda else "gloo",
            store=dist.PrefixStore("group", self.store),  # type: ignore[attr-defined]
            rank=self.rank,
            world_size=self.count,
            timeout=TIMEOUT,
        )

    def leave(self) -> None:
        """Disconnect."""
        dist.destroy_process_group()

    def share(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of an update that this process computes; shares differ by at most one row."""
        return rows[self.rank :: self.count]

    def seed(self, *values: int) -> int:
        """A seed for this process; the first process has the seed of a single-process run."""
        return seed_of(*values, *([self.rank] if self.rank else []))

    def largest(self, value: int) -> int:
        """The largest value of all processes."""
        if self.store is None:
            return value
        largest = torch.tensor(value)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, value: Result) -> list[Result]:
        """The values of all processes, in the order of their ranks."""
        if self.store is None:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def add_gradients(self, parameters: Sequence[nn.Parameter], scale: float) -> None:
        """Replace each gradient by its sum over all processes, times `scale`."""
        if self.store is not None:
            has_gradient = torch.tensor([weight.grad is not None for weight in parameters]).byte()
            dist.all_reduce(has_gradient, dist.ReduceOp.MAX)
            sums = []
            for weight, is_used in zip(parameters, has_gradient.tolist(), strict=True):
                if is_used and weight.grad is None:  # this process has no readable image
                    weight.grad = torch.zeros_like(weight)
                if weight.grad is not None:
                    sums.append(dist.all_reduce(weight.grad, async_op=True))
            for work in sums:
                work.wait()
        for weight in parameters:
            if weight.grad is not None:
                weight.grad.mul_(scale)

    def from_first(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, a JSON value; only the first process calls it, the others wait.

        Raises OtherProcessFailed in the others if it fails.
        """
        if self.store is None:
            return work()
        name = f"call {next(self._calls)}"
        if self.is_first:
            try:
                value = work()
            except PgcliError as error:
                self.store.set(name, json.dumps({FAILED: error.exit_code}))
                raise
            self.store.set(name, json.dumps({"value": value}))
            return value
        while not self.store.check([name]):
            sleep(POLL_SECONDS)  # in Python, which handles signals
        result = json.loads(self.store.get(name))
        if FAILED in result:
            raise OtherProcessFailed(result[FAILED])
        return result["value"]  # type: ignore[no-any-return]

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """A block that fails in all processes if it fails in one. Raises OtherProcessFailed."""
        error: PgcliError | OtherProcessFailed | None = None
        try:
            yield
        except (PgcliError, OtherProcessFailed) as problem:
            error = problem
        exit_code = self.largest(0 if error is None else error.exit_code)
        if error is not None:
            raise error
        if exit_code:
            raise OtherProcessFailed(exit_code)

    def is_first_failure(self) -> bool:
        """Whether this process failed first, and so reports the reason."""
        try:
            return self.store is None or self.store.add(FAILED, 1) == 1
        except RuntimeError:  # the process that holds the store has ended
            return True


ALONE = Processes()


@contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """A block in which the processes that torchrun started are connected, each on its own device.

    The first process that fails raises its error, the others OtherProcessFailed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    store, rank, count = next(rendezvous("env://", timeout=TIMEOUT))
    processes = Processes(rank, count, store)
    try:
        processes.join(device)
        yield processes
        processes.leave()
    except OtherProcessFailed:
        raise
    except Exception as problem:
        if not processes.is_first_failure():
            raise OtherProcessFailed(getattr(problem, "exit_code", 1)) from None
        if isinstance(problem, dist.DistError) or "gloo" in str(problem):
            raise NoUsableDevice(
                "another process of the run has ended without a message",
                hint="the same command resumes; if the system has killed it, memory ran out: "
                "<--micro-batch=> with a smaller number, or fewer <--workers=>",
            ) from problem
        raise
