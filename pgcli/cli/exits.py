"""How the program ends: exit codes, signals, and pipes that nobody reads."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import NoReturn

from pgcli.errors import INCOMPLETE
from pgcli.process_end import SIGNALS, catch, end_requests, requests_end
from pgcli.run.events import CLEANUP_SECONDS, Interrupted

EXIT_CODES = {
    0: "every row answered",
    1: "a bug",
    2: "wrong usage",
    INCOMPLETE: "some rows have errors",
    4: "no image",
    5: "a difference found",
    10: "model not available",
    12: "output in use",
    13: "output of another run",
    14: "output not written",
    15: "too many errors",
    16: "model files not usable",
    17: "no device or memory",
}


def exit_code_text(code: int) -> str:
    """The exit code with its meaning; codes above 128 are signals."""
    if code > 128:
        try:
            return f"{code}, {signal.Signals(code - 128).name}"
        except ValueError:
            return str(code)
    return f"{code}, {EXIT_CODES[code]}" if code in EXIT_CODES else str(code)


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


def open_closed_streams() -> None:
    """Open the standard streams that `2>&-` and the like closed, as /dev/null.

    The next file opened would take such a descriptor, and get what libraries write to the stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one


def discard_output(descriptor: int) -> None:
    """Redirect a stream to /dev/null; the interpreter would fail again on what it buffers."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), descriptor)


@contextmanager
def raise_on_closed_pipe() -> Iterator[None]:
    """A block in which writing to a pipe without a reader raises Interrupted, as SIGPIPE would."""
    try:
        yield
    except BrokenPipeError:
        raise Interrupted(signal.SIGPIPE) from None
    except SystemExit as end:  # Rich, which prints the help, ends the program so
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        raise Interrupted(signal.SIGPIPE) from None
