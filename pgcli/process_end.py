"""The end of this process after a signal: its time limit, and when its requests to servers fail."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Any

#: The signals that ask a program to end.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: A process ends so long after a signal, whatever it does: by the signal, or else by SIGKILL.
END_SECONDS, KILL_SECONDS = 7.5, 0.3

_end = inf


def end_requests(seconds: float) -> None:
    """Make the requests of this process fail after so many seconds; `inf` lifts the limit."""
    global _end
    _end = monotonic() + seconds


def requests_end() -> float:
    """The time by `monotonic` at which requests fail; `inf` as long as no signal came."""
    return _end


def catch(signum: int, handler: Any) -> Any:
    """Set the handler of a signal, and return the one before.

    With glibc, a function handles one of the SIGNALS once: the next one ends the process at once,
    also if C code has kept the function from being called.
    """
    import ctypes

    before, libc = signal.signal(signum, handler), ctypes.CDLL(None)
    if callable(handler) and signum in SIGNALS and hasattr(libc, "sysv_signal"):
        libc.signal.restype = ctypes.c_void_p
        of_python = libc.signal(signum, None)
        libc.sysv_signal(signum, ctypes.c_void_p(of_python))
    return before


@contextmanager
def ends_in_time() -> Iterator[None]:
    """A block in which this process ends at most END_SECONDS after a signal that is handled.

    Another process ends it: neither a handler nor a thread of Python runs while an import or a
    driver holds the GIL.
    """
    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    process = os.getpid()
    if os.fork() == 0:
        try:
            os.dup2(hears, 0)
            os.closerange(1, 2**16)
            end_after_signal(process)
        finally:
            os._exit(0)
    os.close(hears)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        os.close(tells)


def end_after_signal(process: int) -> None:
    """Read numbers of signals from standard input; some time after one, end the process.

    Returns once the process has ended, which closes the other end of the pipe.
    """
    for signum in SIGNALS:  # a terminal sends them to this process, too
        signal.signal(signum, signal.SIG_IGN)
    asks: list[int] = []
    while not asks:
        if not (numbers := os.read(0, 64)):
            return
        asks = [number for number in numbers if number in SIGNALS]
    for seconds, number in ((END_SECONDS, asks[0]), (KILL_SECONDS, signal.SIGKILL)):
        end = monotonic() + seconds
        while select.select([0], [], [], max(0.0, end - monotonic()))[0]:
            if not os.read(0, 64):
                return
        os.kill(process, number)
