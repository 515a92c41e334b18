"""Which other process holds most of a device's memory, as far as this one may know."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from pgcli.device.nvidia_driver import nvidia_smi

PROCESSES = Path("/proc")
WORTH_NAMING = 10**9  # whoever holds less is not why a model finds no room


class GpuProcess(NamedTuple):
    """A process and the bytes that it holds."""

    held: int
    process: int
    name: str


def largest_process(device: torch.device) -> str:
    """The other process that holds most of the device's memory, in words; empty where none does.

    A container shows neither the machine's other processes nor a GPU's.
    """
    found = _on_gpu(device) if device.type == "cuda" else _in_memory()
    others = (holder for holder in found if holder.process != os.getpid())
    most = max(others, default=None)
    if most is None or most.held < WORTH_NAMING:
        return ""
    return f"process {most.process} ({most.name}) holds {most.held / 1e9:.1f} GB"


def _on_gpu(device: torch.device) -> Iterator[GpuProcess]:
    # by name, as CUDA_VISIBLE_DEVICES gives GPUs other numbers than NVIDIA's program has
    name = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    for line in nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory,process_name"):
        gpu, process, held, program = (*line.split(", ", 3), "", "", "")[:4]
        if name in gpu and process.isdigit() and (mebibytes := re.match(r"\d+", held)):
            yield GpuProcess(int(mebibytes[0]) * 2**20, int(process), Path(program).name)


def _in_memory() -> Iterator[GpuProcess]:
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            status = (folder / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended, or is not ours to see
            continue
        named = re.search(r"^Name:\t(.*)$", status, re.M)
        resident = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.M)
        if named and resident:
            yield GpuProcess(int(resident[1]) * 1024, int(folder.name), named[1])
