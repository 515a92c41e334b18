"""Several processes of one `train`, as torchrun starts them; of those that fail, one prints why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from pgcli.errors import NoUsableDevice

if TYPE_CHECKING:
    from pgcli.training.processes import Processes


def is_started_by_torchrun() -> bool:
    """Whether this process is one of several of a run."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """A block in which this process is one of those of a run, each on a device of its own.

    If processes fail, the first of them raises its error, and the others only have its exit code.
    """
    from pgcli.training.processes import OtherProcessFailed, connect, is_lost_connection

    processes = connect()
    try:
        processes.join(device)
        yield processes
        processes.leave()
    except typer.Exit:
        raise
    except OtherProcessFailed as problem:
        raise typer.Exit(problem.exit_code) from None
    except Exception as problem:
        if not processes.is_first_failure():
            raise typer.Exit(getattr(problem, "exit_code", 1)) from None
        if is_lost_connection(problem):
            raise NoUsableDevice(
                "another process of the run has ended without a message",
                hint="the same command resumes; if the system has killed it, memory ran out: "
                "--micro-batch with a smaller number, or fewer --workers",
            ) from problem
        raise
