"""Decode steps as CUDA graphs: captured once and replayed with a single launch."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

import torch
from torch import Tensor

from pgcli.engine.memory import is_oom
from pgcli.model.paligemma import PaliGemma
from pgcli.text import first_line

Output = TypeVar("Output")
#: The device's part of a decode step: reads and writes tensors at fixed addresses only.
Step = Callable[[], Any]


class Recording(NamedTuple):
    """A recorded step: `replay` computes it again, and writes this output."""

    output: Any
    replay: Callable[[], None]


class StepRecorder:
    """Runs decode steps, and records one for each number of rows.

    The first step with a new number of rows runs directly, which loads kernels and workspaces; the
    second is recorded, and later ones are replayed. Recordings hold addresses, so they are dropped
    when any tensor of `memory` is replaced. If recording fails, all steps run directly, with one
    warning that gives the reason; if memory runs out for it, only steps with this number of rows
    do, until `drop`.
    """

    def __init__(self, record: Callable[[Step], Recording]):
        self._record = record
        self._has_failed = False
        self._recordings: dict[int, Recording | None] = {}  # None: it has run, or does not fit
        self._too_large: set[int] = set()
        self._memory: tuple[tuple[int, torch.Size], ...] = ()

    def run(self, step: Callable[[], Output], rows: int, memory: Iterable[Tensor]) -> Output:
        """The step's output, which the next step of the same number of rows overwrites."""
        addresses = tuple((tensor.data_ptr(), tensor.shape) for tensor in memory)
        if addresses != self._memory:
            self.drop()
            self._memory = addresses
        if recording := self._recordings.get(rows):
            recording.replay()
            return cast(Output, recording.output)
        is_first = rows not in self._recordings
        self._recordings[rows] = None
        if is_first or self._has_failed or rows in self._too_large:
            return step()
        try:
            recording = self._recordings[rows] = self._record(step)
        except (RuntimeError, MemoryError) as error:
            self._failed(rows, error)
        if recording is None:  # outside the `except` block: its traceback holds tensors
            return step()
        recording.replay()
        return cast(Output, recording.output)

    def drop(self) -> None:
        """Free the recordings and their memory; later steps are recorded again."""
        self._recordings.clear()
        self._too_large.clear()
        self._memory = ()

    def _failed(self, rows: int, error: Exception) -> None:
        if is_oom(error):
            self._too_large.add(rows)
            return
        self._has_failed = True
        reason = first_line(error)
        warnings.warn(
            "decode steps cannot be recorded as CUDA graphs here; they are launched one operation "
            f"at a time, which is slower and gives the same answers ({reason})",
            stacklevel=1,
        )


class CudaGraphs:
    """Records steps on a device as CUDA graphs, which share their memory: no two run at once.

    One instance records all graphs of a process on a device into one memory pool, because they
    share cuBLAS' workspace, which is in the pool of the first graph. PyTorch frees a pool with its
    last graph and cannot record into it again.
    """

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._pool: Any = None

    def __call__(self, step: Step) -> Recording:
        if not self._graphs:
            torch._C._cuda_clearCublasWorkspaces()  # they would stay in the former pool
            self._pool = torch.cuda.graph_pool_handle()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # threads that decode images may allocate meanwhile
        capture = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            with _without_gc(), capture:
                output = step()
        except BaseException:
            torch.cuda.set_stream(stream)  # a capture that fails to end leaves its own stream
            raise
        self._graphs.add(graph)
        return Recording(output, graph.replay)


@contextmanager
def _without_gc() -> Iterator[None]:
    """Pause the garbage collector: freeing a graph would invalidate a capture in progress."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


#: The recorder of a device, for the steps of all models.
cuda_graphs = cache(CudaGraphs)


def step_recorder(model: PaliGemma) -> StepRecorder | None:
    """A recorder for the model's steps; None on devices without CUDA graphs."""
    device = model.projector.weight.device
    return StepRecorder(cuda_graphs(device)) if device.type == "cuda" else None
