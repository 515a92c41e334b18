"""Signals that end the program: raised as an exception, and sent again once all is tidied up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pgcli.run.progress.shutdown import SIGNALS, Interrupted


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """A block in which a signal raises Interrupted; the same signal again ends the process at once.

    A signal that is ignored, as under `nohup`, stays ignored.
    """
    before = {signum: signal.getsignal(signum) for signum in (*SIGNALS, signal.SIGUSR1)}
    for signum, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(signum, _raise if signum in SIGNALS else _ignore)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def end_process_by(signum: int) -> None:
    """End this process by the signal, so that a shell sees the reason and ends its loop as well."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """SIGUSR1 asks for the progress of a run; before the run there is none, and the default handler
    would end the process.
    """


def _raise(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)
    raise Interrupted(signum)
