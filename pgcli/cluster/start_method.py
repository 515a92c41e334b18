"""How engine processes are started: each as a new program, or forked from one that has imported
what they need."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.cluster.engine_process import EngineSlot

#: Python's variable that keeps the current folder off the module path.
SAFE_PATH = "PYTHONSAFEPATH"
SPAWN = multiprocessing.get_context("spawn")
CAN_FORK = sys.platform == "linux"


@contextmanager
def safe_path() -> Iterator[None]:
    """A block in which programs that are started import no modules of the current folder, which
    may hold images of others."""
    earlier = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
        if earlier is not None:
            os.environ[SAFE_PATH] = earlier


def import_ahead(modules: Sequence[str]) -> None:
    """Start the process that engines on CPU are forked from; it imports the modules meanwhile."""
    forkserver.set_forkserver_preload(list(modules))
    is_forkserver_running()


def start_method(slots: Sequence[EngineSlot]) -> BaseContext:
    """How the engines of these slots are started.

    Several engines on CPU are forked from a process that has imported torch and not used it: each
    of them would take seconds to import it. A CUDA device cannot be used after a fork.
    """
    forks = len(slots) > 1 and all(slot.device == "cpu" for slot in slots)
    if forks and CAN_FORK and is_forkserver_running():
        return multiprocessing.get_context("forkserver")
    return SPAWN


def is_forkserver_running() -> bool:
    """Whether that process runs; it is started if there is a folder for its socket."""
    with safe_path(), suppress(OSError):
        forkserver.ensure_running()
        return True
    return False
