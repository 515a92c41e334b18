"""The process that uses most of a device's memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from pgcli.device.nvidia_driver import nvidia_smi

PROCESSES = Path("/proc")
MIN_REPORTED_BYTES = 10**9  # smaller processes do not prevent a model from loading


class GpuProcess(NamedTuple):
    """A process and the bytes that it uses."""

    used: int
    pid: int
    name: str


def largest_process(device: torch.device) -> str:
    """A sentence about the other process that uses most of the device's memory, or an empty text.

    In a container, processes outside it are not visible.
    """
    found = _on_gpu(device) if device.type == "cuda" else _in_memory()
    others = (process for process in found if process.pid != os.getpid())
    most = max(others, default=None)
    if most is None or most.used < MIN_REPORTED_BYTES:
        return ""
    return f"process {most.pid} ({most.name}) holds {most.used / 1e9:.1f} GB"


def _on_gpu(device: torch.device) -> Iterator[GpuProcess]:
    # by UUID: CUDA_VISIBLE_DEVICES changes the numbers that nvidia-smi uses
    name = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    for line in nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory,process_name"):
        gpu, pid, used, program = (*line.split(", ", 3), "", "", "")[:4]
        if name in gpu and pid.isdigit() and (mebibytes := re.match(r"\d+", used)):
            yield GpuProcess(int(mebibytes[0]) * 2**20, int(pid), Path(program).name)


def _in_memory() -> Iterator[GpuProcess]:
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            status = (folder / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended, or may not be read
            continue
        named = re.search(r"^Name:\t(.*)$", status, re.M)
        resident = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.M)
        if named and resident:
            yield GpuProcess(int(resident[1]) * 1024, int(folder.name), named[1])
