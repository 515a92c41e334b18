"""A model's device and dtype, the free memory of a device, and its clocks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from pgcli.device.machine import find_gpu_problem, gpu_has_bfloat16, memory_left
from pgcli.errors import NoUsableDevice, UsageError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
DEVICE_NAME = re.compile(r"auto|cpu|mps|cuda(:(0|[1-9][0-9]?))?")
SMALL_CHECKPOINT_BYTES = 10**9  # below this float32 costs little and is exact


def choose_device(name: str) -> torch.device:
    """The named device; `auto` takes CUDA, then Apple's GPU, then the CPU.

    Raises NoUsableDevice if the machine lacks it, UsageError for an unknown name.
    """
    if not DEVICE_NAME.fullmatch(name):
        raise UsageError(f"unknown device {name!r}", hint="one of auto, cpu, cuda, cuda:N and mps")
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        _check_cuda(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise NoUsableDevice("this machine has no Apple GPU", hint="<--device auto> uses the CPU")
    return device


def _check_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        message = "no CUDA device can be used"
        if problem := find_gpu_problem():
            hint = f"{problem.remedy}; or <--device cpu>"
            raise NoUsableDevice(f"{message}: {problem.reason}", hint=hint)
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU only"
        raise NoUsableDevice(
            f"{message}: there is no NVIDIA driver on this machine, and this PyTorch is {built}",
            hint="use <--device cpu> or <--device auto>",
        )
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise NoUsableDevice(
            f"there is no {device}: this machine has {count} CUDA device{'s' * (count != 1)}",
            hint=f"<--device cuda:{count - 1}>",
        )


def choose_dtype(
    name: str,
    device: torch.device,
    checkpoint_bytes: int,
    float16_problem: str = "only PaliGemma 1 runs in float16",
) -> torch.dtype:
    """The named dtype; `auto` takes bfloat16 if the GPU has it, on a CPU for large checkpoints.

    float16 is for GPUs without bfloat16, and for models without a `float16_problem`.
    """
    if name == "float16" and (problem := float16_problem or _without_float16(device)):
        raise UsageError(
            problem, hint="use <--dtype bfloat16>, which takes as little memory, or auto"
        )
    if name != "auto":
        if name not in DTYPES:
            raise UsageError(
                f"unknown dtype {name!r}", hint="one of auto, bfloat16, float16 and float32"
            )
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if gpu_has_bfloat16(torch, device) else torch.float32
    if device.type == "mps":
        return torch.bfloat16 if torch.backends.mps.is_macos_or_newer(14, 0) else torch.float32
    return torch.bfloat16 if checkpoint_bytes > SMALL_CHECKPOINT_BYTES else torch.float32


def _without_float16(device: torch.device) -> str:
    """Why models do not run in float16 on a device; empty if they do."""
    if device.type != "cuda":
        return f"float16 needs an NVIDIA GPU, but the model runs on {device}"
    if gpu_has_bfloat16(torch, device):
        return f"{device} supports bfloat16, which is as fast as float16"
    return ""


def free_bytes(device: torch.device) -> int:
    """Free memory of the device in bytes, within a container's limit."""
    if device.type == "cuda":
        # PyTorch keeps freed memory in a cache, which counts as free here
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    group_free = memory_left()
    machine_free = _machine_bytes()
    return machine_free if group_free is None else min(group_free, machine_free)


def _machine_bytes() -> int:
    """Available memory of the whole machine, also inside a container."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        available = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if available:
            return int(available[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


#: A point in time on a device's clock.
TimeMark = float | torch.cuda.Event


class Stopwatch:
    """Milliseconds between marks: device time on CUDA, wall time elsewhere.

    On CUDA a mark is an event in the stream, and setting one does not wait. Reading the time
    between two marks waits for the second.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> TimeMark:
        if not self._cuda:
            if self._device.type == "mps":
                torch.mps.synchronize()
            return perf_counter()
        # a wait for a blocking event sleeps, which leaves the core to decoding processes
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, first: TimeMark, second: TimeMark) -> float:
        if isinstance(first, float) or isinstance(second, float):
            assert isinstance(first, float)
            assert isinstance(second, float)
            return (second - first) * 1000
        second.synchronize()
        return float(first.elapsed_time(second))


class TimedPass(NamedTuple):
    """A forward pass over `rows` rows, between two marks."""

    watch: Stopwatch
    start: TimeMark
    end: TimeMark
    rows: int

    def ms_of_row(self) -> float:
        """Each row's share of the time in milliseconds; waits for the device."""
        return self.watch.between(self.start, self.end) / self.rows
