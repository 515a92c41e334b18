"""Signals that end the program: raised as an exception, and raised again after the clean-up."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import NoReturn

from pgcli.process_end import SIGNALS, catch, end_requests, requests_end
from pgcli.run.progress.shutdown import CLEANUP_SECONDS, Interrupted

#: Between two looks whether an import has ended, or whether an exception was lost.
RETRY_SECONDS = 0.05


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """A block in which a signal raises Interrupted; another one then ends the process at once.

    A signal that is ignored, as under `nohup`, stays ignored.
    """
    handlers = dict.fromkeys(SIGNALS, SignalRaiser())
    before = {signum: signal.getsignal(signum) for signum in (*handlers, signal.SIGALRM)}
    for signum, handler in handlers.items():
        if before[signum] is not signal.SIG_IGN:
            catch(signum, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        end_requests(inf)
        for signum, earlier in before.items():
            signal.signal(signum, earlier)


class SignalRaiser:
    """Raises Interrupted after a signal, once no module is being imported.

    An import that fails halfway leaves a module that is half there, and what imports modules from C
    may drop the exception, as pyarrow does with pandas. So it waits for the end of imports, and
    raises again if the exception was lost.
    """

    def __init__(self) -> None:
        self._signum: int | None = None
        self._raised: weakref.ref[Interrupted] | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal, or the alarm some time after it."""
        if self._signum is None:
            if requests_end() < inf:  # a signal came before this one, during the run
                end_process_by(signum)
            end_requests(CLEANUP_SECONDS)
            self._signum = signum
            for number in SIGNALS:
                if signal.getsignal(number) is self:
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, self)
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        is_underway = self._raised is not None and self._raised() is not None
        if is_underway or is_importing(frame):
            return
        interrupted = Interrupted(self._signum)
        self._raised = weakref.ref(interrupted)
        try:
            raise interrupted
        finally:
            del interrupted  # this frame, which the exception holds, must not hold the exception


def is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported by the code of this frame, or by what called it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def end_process_by(signum: int) -> NoReturn:
    """End this process by the signal, so that a shell sees the reason and ends its loop as well."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)  # the first process of a container is not ended by it
