"""How many processes decode images for a model on a device."""

from __future__ import annotations

from pathlib import Path

from pgcli.device.cgroup import processors

MOST_ON_GPU = 32  # each takes about 60 MB
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


def decoding_processes(device: str, engines: int | None = None) -> int | None:
    """The processes that decode unless `--workers` is given; None for the default of a CPU.

    A GPU computes faster than a few cores decode: all cores of the machine but one decode, divided
    among the `engines` that run on GPUs, which are as many as GPUs if their number is not known.
    """
    if not device.startswith("cuda"):
        return None
    if engines is None:
        engines = len([*NVIDIA_GPUS.iterdir()]) if NVIDIA_GPUS.is_dir() else 1
    share, remainder = divmod(int(processors()) - 1, max(1, engines))
    share += int(device.partition(":")[2] or 0) < remainder
    return max(1, min(MOST_ON_GPU, share))
