"""The process that engines on a CPU are forked from, started before the run needs it."""

from __future__ import annotations

from pgcli.cli.options import ModelOptions
from pgcli.cluster.start_method import CAN_FORK, import_ahead
from pgcli.device.nvidia_driver import nvidia_driver


def import_for_engines(options: ModelOptions) -> None:
    """While the run is prepared, have a process import what its engines on CPU need."""
    is_local = options.ray is None and (options.engines or 1) > 1
    if is_local and options.device in ("auto", "cpu") and nvidia_driver() is None and CAN_FORK:
        import_ahead(["pgcli.cli.job.engine_imports"])
