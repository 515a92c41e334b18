"""How many processes decode images for a model on a device."""

from __future__ import annotations

import os

from pgcli.device.cgroup import processors
from pgcli.device.machine import installed_gpus, visible_gpus

MOST_ON_GPU = 32  # each takes about 60 MB


def decoding_processes(device: str, engines: int | None = None) -> int | None:
    """The default number of decoding processes; None for the default on CPUs.

    A GPU computes faster than a few cores decode, so all cores but one decode, divided among the
    `engines` on GPUs. If their number is unknown, it is one for each GPU of the machine; where a
    scheduler restricts the cores of this process, one for each visible GPU.
    """
    if not device.startswith("cuda"):
        return None
    cores = int(processors())
    if engines is None:
        engines = visible_gpus() if cores < (os.cpu_count() or 1) else installed_gpus()
    share, remainder = divmod(cores - 1, max(1, engines))
    share += int(device.partition(":")[2] or 0) < remainder
    return max(1, min(MOST_ON_GPU, share))
