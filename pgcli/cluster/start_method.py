"""How engine processes are started: each as a new program, or forked from one that has imported
what they need."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from pgcli.cluster.engine_slot import EngineSlot

#: Python's variable that keeps the current folder off the module path.
SAFE_PATH = "PYTHONSAFEPATH"
SPAWN = multiprocessing.get_context("spawn")
CAN_FORK = sys.platform == "linux"
#: The signals that ask a program to end. A terminal and `kill` send them to its processes, too.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def starting() -> Iterator[None]:
    """A block that starts processes: they import nothing of the current folder, and the signals
    that end a program wait until they ignore them."""
    with safe_path():
        resource_tracker.ensure_running()  # its start unblocks signals
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def start_process(process: BaseProcess, context: BaseContext) -> None:
    """Start a process of the context. Raises EOFError or OSError if it cannot be started."""
    if context.get_start_method() == "forkserver":
        is_forkserver_running()
        with safe_path():  # signals do not wait for that process, which may be importing
            process.start()
    else:
        with starting():
            process.start()


def ignore_signals() -> None:
    """Ignore the signals that end a program: the program decides when this process ends."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


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
    with suppress(OSError), starting():
        forkserver.ensure_running()
        return True
    return False
