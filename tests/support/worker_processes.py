"""The processes that decode images for this one."""

from __future__ import annotations

import contextlib

import psutil


def worker_processes() -> list[psutil.Process]:
    """The worker processes; other tests may have left a server running."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess):  # a server that another test has ended
            if "pgcli.workers.worker_main" in " ".join(child.cmdline()):
                found.append(child)
    return found
