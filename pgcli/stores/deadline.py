"""Waits that end: at a deadline, once the reader is stopped, and when a signal interrupts them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic
from typing import TypeVar

from pgcli.stores.errors import STOPPED, RemoteError

POLL_SECONDS = 0.1

Result = TypeVar("Result")


class Deadline:
    """The end of a request. Once `stopped` is set, no wait starts any more."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self.stopped = stopped
        self._end = monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Allow so many seconds more."""
        self._end += seconds

    def remaining(self, limit: float) -> float:
        """The seconds of one wait, at most `limit`. Raises TimeoutError, RemoteError if stopped."""
        if self.stopped.is_set():
            raise RemoteError(STOPPED)
        seconds = min(limit, self._end - monotonic())
        if seconds <= 0:
            raise TimeoutError
        return seconds


def run_abandonable(call: Callable[[], Result], *deadlines: Deadline) -> Result:
    """What the call returns or raises. Raises TimeoutError, and RemoteError once it is stopped.

    No signal interrupts the call, and it may have no time limit: it runs in a thread, which is
    abandoned at the first deadline, or when a signal raises an exception here.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the call is waited for
            future.set_exception(error)

    threading.Thread(target=run, name="pgcli-remote", daemon=True).start()
    while not future.done():
        wait([future], min(deadline.remaining(POLL_SECONDS) for deadline in deadlines))
    return future.result()
