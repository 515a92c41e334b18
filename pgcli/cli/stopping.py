"""What ends a run from outside: a signal, or the reader of a pipe that has gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Raised where the program happens to be. `signum` is what it must end by, once it is tidy."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum


@contextmanager
def signals_watched() -> Iterator[None]:
    """A block in which a signal raises Stopped; the same signal again ends the process at once.

    A signal that is ignored already, as `nohup` has it, stays ignored.
    """
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    for signum, known in before.items():
        if known is not signal.SIG_IGN:
            signal.signal(signum, _stop)
    try:
        yield
    finally:
        for signum, known in before.items():
            signal.signal(signum, known)


@contextmanager
def readers_watched() -> Iterator[None]:
    """A block in which a pipe that nobody reads any more raises Stopped, as SIGPIPE would."""
    try:
        yield
    except BrokenPipeError:
        raise Stopped(signal.SIGPIPE) from None


def end_by(signum: int) -> None:
    """End this process by the signal, so that a shell sees why, and its loop ends as well."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def forget_output() -> None:
    """Drop what standard output could not take: the interpreter would fail on it again at exit."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)


def fill_closed() -> None:
    """Open the standard streams that were closed by `2>&-` and the like, as nothing.

    The next file opened would take such a place, and get what libraries write to it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free place, which is this one


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)
    raise Stopped(signum)
