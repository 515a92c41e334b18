"""Whether a model's weights find room on a device, and what would do where they do not."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pgcli.device import gpu_processes
from pgcli.device.select import free_bytes
from pgcli.errors import NoUsableDevice
from pgcli.model.cpu.optimize import packed_bytes

SMALLER = "name a smaller model: `pgcli info MODEL` tells what one needs"


def check_fits(parameters: int, dtype: torch.dtype, device: torch.device, quantize: str) -> None:
    """Raise NoUsableDevice now rather than be killed in the middle of loading."""
    needed = packed_bytes(parameters * dtype.itemsize, dtype, quantize)
    free = free_bytes(device)
    if needed <= free:
        return
    holder = gpu_processes.largest_process(device)
    name = str(dtype).removeprefix("torch.")
    raise NoUsableDevice(
        f"the weights take {needed / 1e9:.1f} GB in {name}, and {device} has {free / 1e9:.1f} GB "
        f"free" + (f"; {holder}" if holder else ""),
        hint="; ".join([*_ways(parameters, dtype, device, quantize), *_always(holder)]),
    )


def _ways(
    parameters: int, dtype: torch.dtype, device: torch.device, quantize: str
) -> Iterator[str]:
    """What would fit, or come closer to it, each with what it takes."""
    half = packed_bytes(parameters * 2, torch.bfloat16, quantize)
    if dtype == torch.float32:
        yield f"--dtype bfloat16 takes {half / 1e9:.1f} GB"
    if packed_bytes(1000, dtype, quantize) > 1000:
        yield "--quantize none takes a third less"
    if device.type != "cpu" and half <= free_bytes(torch.device("cpu")):
        yield "--device cpu has room"


def _always(holder: str) -> Iterator[str]:
    if holder:
        yield "end the process that holds it"
    yield SMALLER
