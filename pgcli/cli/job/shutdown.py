"""What ends a run from outside: a signal, or the reader of a pipe that has gone."""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: What is under way after a signal is finished in so many seconds, or computed again another time.
GRACE_SECONDS = 10.0


class Interrupted(BaseException):
    """Raised where the program happens to be. `signum` is what it must end by, once it is tidy."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum


@contextmanager
def signals_watched() -> Iterator[None]:
    """A block in which a signal raises Stopped; the same signal again ends the process at once.

    A signal that is ignored already, as `nohup` has it, stays ignored.
    """
    before = {signum: signal.getsignal(signum) for signum in (*SIGNALS, signal.SIGUSR1)}
    for signum, known in before.items():
        if known is not signal.SIG_IGN:
            signal.signal(signum, _stop if signum in SIGNALS else _go_on)
    try:
        yield
    finally:
        for signum, known in before.items():
            signal.signal(signum, known)


class GracefulShutdown:
    """A block in which a signal asks for an end instead of bringing it: `signum` says which.

    The same or another signal ends the process at once, and after GRACE_SECONDS Interrupted is
    raised.
    Where rows go to a pipe, a reader that has gone asks for an end as well. `tell` is called once
    when a signal comes, `status` at each SIGUSR1, both in a thread of their own. `paused_seconds`
    is how long the process was stopped by Ctrl-Z.
    """

    def __init__(self, tell: Callable[[], None], status: Callable[[], None], *, pipes: bool):
        self.signum: int | None = None
        self.paused_seconds = 0.0
        self._tell, self._status = tell, status
        self._pipe = reader_of_stdout() if pipes else None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        handlers = dict.fromkeys(SIGNALS, self._asked)
        handlers |= {signal.SIGALRM: self._late, signal.SIGUSR1: self._asked_for_status}
        handlers[signal.SIGTSTP] = self._pause
        for signum, handler in handlers.items():
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, handler)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def asked(self) -> bool:
        """Whether the run is to end."""
        if self.signum is None and self._pipe is not None and self._pipe.poll(0):
            self.signum = signal.SIGPIPE
        return self.signum is not None

    def _asked(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        for other in SIGNALS:
            if other in self._before:
                signal.signal(other, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        threading.Thread(target=self._tell, daemon=True).start()  # this thread may hold the screen

    def _late(self, signum: int, frame: FrameType | None) -> None:
        assert self.signum is not None
        raise Interrupted(self.signum)

    def _pause(self, signum: int, frame: FrameType | None) -> None:
        began = perf_counter()
        signal.signal(signum, signal.SIG_DFL)
        signal.raise_signal(signum)  # to this thread: it comes back when the process goes on
        signal.signal(signum, self._pause)
        self.paused_seconds += perf_counter() - began

    def _asked_for_status(self, signum: int, frame: FrameType | None) -> None:
        threading.Thread(target=self._status, daemon=True).start()


def reader_of_stdout() -> select.poll | None:
    """What finds, asked with `poll`, that nobody reads standard output any more."""
    try:
        if not stat.S_ISFIFO(os.fstat(1).st_mode):
            return None
    except OSError:
        return None
    watched = select.poll()
    watched.register(1, 0)  # an error alone: that the pipe has room is no news
    return watched


@contextmanager
def readers_watched() -> Iterator[None]:
    """A block in which a pipe that nobody reads any more raises Interrupted, as SIGPIPE would."""
    try:
        yield
    except BrokenPipeError:
        raise Interrupted(signal.SIGPIPE) from None


def end_by(signum: int) -> None:
    """End this process by the signal, so that a shell sees why, and its loop ends as well."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def forget(descriptor: int) -> None:
    """Drop what a stream could not take: the interpreter would fail on it again at exit."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), descriptor)


def fill_closed() -> None:
    """Open the standard streams that were closed by `2>&-` and the like, as nothing.

    The next file opened would take such a place, and get what libraries write to it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free place, which is this one


def _go_on(signum: int, frame: FrameType | None) -> None:
    """There is no run yet to tell of, and SIGUSR1 would end the process."""


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)
    raise Interrupted(signum)
