"""How many processes decode images for a model on a device."""

from __future__ import annotations

from pathlib import Path

from pgcli.device.cgroup import processors

MOST_ON_GPU = 32  # each takes about 60 MB
OTHER_PROCESSES = 2  # the cores left for the program
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


def decoding_processes(device: str) -> int | None:
    """The processes that decode unless `--workers` is given; None for the default of a CPU.

    A GPU computes faster than a few cores decode: it gets all cores of the machine but two, where
    there are several GPUs its share of them.
    """
    if not device.startswith("cuda"):
        return None
    gpus = len([*NVIDIA_GPUS.iterdir()]) if NVIDIA_GPUS.is_dir() else 1
    cores = int(processors()) // max(1, gpus)
    return max(1, min(MOST_ON_GPU, cores - OTHER_PROCESSES))
