"""How many processes decode images for a model on a device."""

from __future__ import annotations

import os

from pgcli.device.cgroup import processors
from pgcli.device.nvidia_driver import installed_gpus, visible_gpus

MOST_ON_GPU = 32  # each takes about 60 MB


def decoding_processes(device: str, engines: int | None = None) -> int | None:
    """The processes that decode unless `--workers` is given; None for the default of a CPU.

    A GPU computes faster than a few cores decode: all cores but one decode, divided among the
    `engines` that compute on GPUs. If their number is not known, each GPU of the machine has one;
    where a scheduler gave only some cores to this process, each GPU that it sees.
    """
    if not device.startswith("cuda"):
        return None
    cores = int(processors())
    if engines is None:
        engines = visible_gpus() if cores < (os.cpu_count() or 1) else installed_gpus()
    share, remainder = divmod(cores - 1, max(1, engines))
    share += int(device.partition(":")[2] or 0) < remainder
    return max(1, min(MOST_ON_GPU, share))
