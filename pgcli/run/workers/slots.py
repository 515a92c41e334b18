"""Where the engines of a run on this machine run: on GPUs, or on cores."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.device.machine import processors, visible_gpus
from pgcli.errors import NoUsableDevice

#: On a CPU, models with smaller files are fastest with one thread for each engine.
SINGLE_THREAD_BYTES = 100 * 2**20
#: For fewer rows, engines take longer to start than they save.
MIN_ROWS_FOR_ENGINES = 500
MOST_ON_CPU = 8


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """Where an engine runs: on `threads` cores, or on the device of this name."""

    threads: int
    device: str = "cpu"


def engine_slots(
    engines: int | None, device: str, checkpoint_bytes: int, *, rows: int, cores: int | None = None
) -> list[EngineSlot]:
    """Where engines run: one on each GPU, or on a CPU each with its share of the cores.

    A model with small files has one thread for each engine, so that rows do not depend on their
    number. By default, runs of `MIN_ROWS_FOR_ENGINES` take all GPUs, or all cores for such a model.
    Raises NoUsableDevice for more engines than GPUs.
    """
    is_small = checkpoint_bytes < SINGLE_THREAD_BYTES
    cores = cores or max(1, int(processors()))
    gpus = visible_gpus() if device in ("auto", "cuda") else 0
    if gpus:
        if (engines or 0) > gpus:
            raise NoUsableDevice(
                f"<--engines {engines}> needs as many GPUs, and this machine has {gpus}",
                hint=f"<--engines {gpus}>, or auto",
            )
        count = engines or (gpus if rows >= MIN_ROWS_FOR_ENGINES else 1)
        return [EngineSlot(1, f"cuda:{index}") for index in range(count)]
    if device not in ("auto", "cpu"):
        return [EngineSlot(cores, device)]
    most = max(1, min(cores, MOST_ON_CPU, 2 * rows // MIN_ROWS_FOR_ENGINES))
    count = engines or (most if is_small and rows >= MIN_ROWS_FOR_ENGINES else 1)
    return [EngineSlot(1 if is_small else max(1, cores // count), "cpu")] * count
