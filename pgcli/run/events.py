"""The events of a run in progress, and its graceful end after a signal or a closed pipe."""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Self, TypeAlias, TypeVar

from pgcli.errors import OutputFailed
from pgcli.process_end import SIGNALS, catch, end_requests

T = TypeVar("T")

#: Names and values, for example of a summary.
Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence, and what to do about it."""

    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """The start of a stage, which ends the previous one. `total` is None if it is unknown.

    `initial` of the total were done before. A stage without a `unit` counts nothing.
    """

    task: str
    total: int | None = None
    initial: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage: the number of items done, and of failed rows among them.

    `details` add text.
    """

    done: int
    errors: int = 0
    waits_for: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class StageEnd:
    """The end of a stage."""


@dataclass(frozen=True, slots=True)
class FactTable:
    """Names and values: the plan of a run, or its summary."""

    facts: Facts


Event: TypeAlias = "Message | Stage | Progress | StageEnd | FactTable"
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Show nothing."""


def tracked(
    items: Iterable[T], on_event: OnEvent, task: str, total: int | None = None, *, unit: str = ""
) -> Generator[T]:
    """The items, counted as a stage."""
    on_event(Stage(task, total, unit=unit))
    try:
        for number, item in enumerate(items, start=1):
            yield item
            on_event(Progress(number))
    finally:
        on_event(StageEnd())


#: After a signal, rows in progress have this long to finish; a resumed run computes the rest. At
#: END_SECONDS the process is ended, as `docker stop` would after ten seconds.
GRACE_SECONDS = 6.0
#: After this many more seconds, or after a signal outside of a run, requests to servers fail.
CLEANUP_SECONDS = 1.0


class Interrupted(BaseException):
    """A signal or a closed pipe ends the program. `signum` is the signal to re-raise."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum


class GracefulShutdown:
    """A block in which a signal stops the run after the rows in progress. `signum` is the signal.

    A second signal ends the process at once; after GRACE_SECONDS, Interrupted is raised. With
    `pipes`, a closed standard output stops the run, too. `on_signal` is called once, in a thread,
    after the first signal.
    """

    def __init__(self, on_signal: Callable[[], None], *, pipes: bool):
        self.signum: int | None = None
        self._on_signal = on_signal
        self._poll = poll_stdout() if pipes else None
        self._handlers_before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        handlers = dict.fromkeys(SIGNALS, self._request) | {signal.SIGALRM: self._end_grace}
        for signum, handler in handlers.items():
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._handlers_before[signum] = catch(signum, handler)
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        if self.signum is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._handlers_before.items():
            catch(signum, handler)
        if isinstance(problem, OutputFailed):  # a store that has hung until now, for one
            self.raise_if_requested()

    def should_stop(self) -> bool:
        """Whether the run has to end."""
        if self.signum is None and self._poll is not None and self._poll.poll(0):
            self.signum = signal.SIGPIPE
        return self.signum is not None

    def raise_if_requested(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def _request(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        for number in SIGNALS:
            if number in self._handlers_before:
                signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        end_requests(GRACE_SECONDS + CLEANUP_SECONDS)
        # in a thread, as the main thread may hold the lock of the console
        threading.Thread(target=self._on_signal, daemon=True).start()

    def _end_grace(self, signum: int, frame: FrameType | None) -> None:
        self.raise_if_requested()
        earlier = self._handlers_before.get(signum)
        if callable(earlier):  # the alarm of an earlier signal, before this block
            earlier(signum, frame)


def poll_stdout() -> select.poll | None:
    """A poll object that reports a closed standard output; None if it is no pipe."""
    try:
        if not stat.S_ISFIFO(os.fstat(1).st_mode):
            return None
    except OSError:
        return None
    poll = select.poll()
    poll.register(1, 0)  # errors only
    return poll
