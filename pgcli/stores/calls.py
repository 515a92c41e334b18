"""Calls that wait for servers; they end at a deadline, after `stop`, and with the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from math import inf
from time import monotonic
from typing import TypeVar

from pgcli.process_end import requests_end
from pgcli.stores.errors import STOPPED, TOO_SLOW, RemoteError, TransientError
from pgcli.stores.urls import without_credentials

#: How long a request is repeated after errors that may pass.
PATIENCE_SECONDS = 180.0
#: A message says that a call still waits after so long, and at most once in the longer time.
SILENT_SECONDS, MESSAGE_SECONDS = 10.0, 180.0
POLL_SECONDS = 0.1

Result = TypeVar("Result")
_announced_at = -inf


class Deadline:
    """The end of a request. Once `stopped` is set, no new wait starts."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self._stopped, self.end = stopped, monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Allow so many seconds more."""
        self.end += seconds

    def remaining(self, limit: float = inf) -> float:
        """The seconds of one wait, at most `limit`. Raises RemoteError at the end or if stopped."""
        now = monotonic()
        if self._stopped.is_set() or now >= requests_end():
            raise RemoteError(STOPPED)
        if now >= self.end:
            raise TransientError(TOO_SLOW)
        return min(limit, self.end - now)

    def pause(self, seconds: float) -> None:
        """Wait between two tries. Raises the same errors as `remaining`."""
        resumes_at = monotonic() + seconds
        while (seconds := resumes_at - monotonic()) > 0:
            self._stopped.wait(self.remaining(min(seconds, POLL_SECONDS)))


def in_thread(call: Callable[[], Result], deadline: Deadline, url: str) -> Result:
    """The result of a call that reads or writes a URL. Raises RemoteError as the deadline does.

    No signal interrupts such a call, and it may have no timeout: it runs in a thread, which is
    abandoned at the deadline, or when a signal raises an exception here.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            future.set_exception(error)

    deadline.remaining()
    threading.Thread(target=run, name="pgcli-remote", daemon=True).start()
    announced_at = monotonic() + SILENT_SECONDS
    while not future.done():
        wait([future], deadline.remaining(POLL_SECONDS))
        if monotonic() >= announced_at:
            announce(url)
    return future.result()


def announce(url: str) -> None:
    """Log, once in a while, that a call waits for a server."""
    global _announced_at
    now = monotonic()
    if now - _announced_at >= MESSAGE_SECONDS:
        _announced_at = now
        logging.getLogger("pgcli").warning("pgcli: waiting for %s", without_credentials(url))
