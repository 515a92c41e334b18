"""Starts engine processes on this machine, and exchanges messages with them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pgcli.text import printable

if TYPE_CHECKING:
    from pgcli.run.workers.engine import EngineTask
    from pgcli.run.workers.work import EngineSlot, Work

#: Python's variable that keeps the current folder off the module path.
SAFE_PATH = "PYTHONSAFEPATH"
SPAWN = multiprocessing.get_context("spawn")
CAN_FORK = sys.platform == "linux"
#: The signals that ask a program to end. A terminal sends them to its child processes, too.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


#: The message that lets an engine finish only the rows in progress.
STOP = "stop"


class EngineDied(Exception):
    """The process has ended; the argument says how."""


class EngineProcess:
    """An engine process of a run. Closing it ends it."""

    def __init__(self, task: EngineTask, context: BaseContext):
        self.slot = task.slot
        self.connection, child_end = context.Pipe()
        make: Any = context.Process  # type: ignore[attr-defined]
        self._process = make(target=serve, args=(child_end, task), daemon=True)
        self._problem = "it ended"  # for a process without an exit code
        atexit.register(self.close)  # multiprocessing would send SIGTERM and wait
        try:
            is_forked = context.get_start_method() == "forkserver"
            if is_forked:
                with starting():
                    forkserver.ensure_running()
            # signals are not blocked for the fork server: it may be importing
            with safe_path() if is_forked else starting():
                self._process.start()
        except (EOFError, OSError) as problem:  # EOFError: the fork server has died
            self._problem = f"it did not start: {problem}"
        finally:
            child_end.close()
        self.pid = self._process.pid

    def send(self, work: Work | str | None) -> None:
        """Give the engine more rows; None means that there are no more."""
        with suppress(OSError):  # it has died: `receive` raises
            self.connection.send(work)

    def receive(self) -> Any:
        """The next message; None once it has ended. Raises EngineDied."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            if self._process.pid is not None:
                self._process.join(timeout=5)
            code, how = self._process.exitcode, self._problem
            if code is not None:
                how = f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"
            raise EngineDied(how) from None

    def stop(self) -> None:
        """Let the engine finish only the rows in progress."""
        self.send(STOP)

    def close(self) -> None:
        """End the process."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join(timeout=5)
        self.connection.close()
        atexit.unregister(self.close)


@dataclass(frozen=True)
class EngineFailed:
    """The engine raised an exception and ends. `traceback` is its text."""

    error: BaseException
    traceback: str


def serve(connection: Connection, task: EngineTask) -> None:
    """Answer the works that the program sends, and send rows back, or an exception."""
    from pgcli.images.child_process import die_with_parent
    from pgcli.run.workers.engine import answer_works, rows_of_task

    warnings.formatwarning = lambda text, *_: f"pgcli: {printable(str(text))}\n"
    die_with_parent()
    ignore_signals()
    stop, works = threading.Event(), SimpleQueue[Any]()
    threading.Thread(target=read_inbox, args=(connection, works, stop), daemon=True).start()
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            rows = rows_of_task(task)
            answer_works(task, rows, iter(works.get, None), stop.is_set, connection.send)
            connection.send(None)
        except Exception as error:  # noqa: BLE001 - the program raises it
            connection.send(EngineFailed(error, traceback.format_exc()))


def read_inbox(connection: Connection, works: SimpleQueue[Any], stop: threading.Event) -> None:
    """Pass received works on; end this process when the program has ended."""
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if message == STOP:
                stop.set()
                message = None  # the works end as well
            works.put(message)
    os._exit(1)


@contextmanager
def starting() -> Iterator[None]:
    """A block that starts processes.

    They import nothing from the current folder, and termination signals are blocked until the
    processes ignore them.
    """
    with safe_path():
        resource_tracker.ensure_running()  # its start unblocks signals
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def ignore_signals() -> None:
    """Ignore termination signals: the program decides when this process ends."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def safe_path() -> Iterator[None]:
    """A block in which started programs import no modules from the current folder.

    It may have untrusted files.
    """
    earlier = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
        if earlier is not None:
            os.environ[SAFE_PATH] = earlier


def start_method(slots: Sequence[EngineSlot]) -> BaseContext:
    """The start method for the engines of these slots.

    Several engines on a CPU are forked from a process that has imported torch but not used it,
    because each import takes seconds. CUDA cannot be used after a fork.
    """
    if CAN_FORK and len(slots) > 1 and all(slot.device == "cpu" for slot in slots):
        forkserver.set_forkserver_preload(["pgcli.run.workers.engine_imports"])
        return multiprocessing.get_context("forkserver")
    return SPAWN
