"""The process that engines on a CPU are forked from, started before the run needs it."""

from __future__ import annotations

from pgcli.cli.options import JobOptions


def import_for_engines(options: JobOptions, engines: int | None) -> None:
    """While the run is prepared, have a process import what its engines on CPU need."""
    model = options.model
    if options.running.dry_run or model.ray is not None or (engines or 1) == 1:
        return
    # not at the top: --help has to be fast
    from pgcli.cluster.start_method import CAN_FORK, import_ahead
    from pgcli.device.nvidia_driver import nvidia_driver

    if model.device in ("auto", "cpu") and nvidia_driver() is None and CAN_FORK:
        import_ahead(["pgcli.cli.job.engines.engine_imports"])
