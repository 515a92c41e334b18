"""The processes that torchrun starts for a training run: each computes a part of every update.

Gradients are summed after the backward pass instead of by DistributedDataParallel during it. So a
process may use another number of micro-batches than the others, halve them when memory runs out, or
have no readable image.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous

from pgcli.errors import NoUsableDevice, UsageError
from pgcli.training.rows import seed_of

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Row = TypeVar("Row")
Result = TypeVar("Result")

#: Of one collective operation, while the first process may download a model or evaluate; torchrun
#: ends all processes when one fails.
TIMEOUT = timedelta(days=1)
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

    def wait(self) -> None:
        """Wait for all processes, such as for files that the first one writes."""
        self.largest(0)

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
    store, rank, count = next(rendezvous("env://"))
    processes = Processes(rank, count, store)
    try:
        processes.join(device)
        yield processes
        processes.leave()
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
