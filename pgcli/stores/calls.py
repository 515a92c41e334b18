"""Requests with deadlines and retries, which end with the process."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from math import inf
from time import monotonic
from typing import TypeVar

from pgcli.process_end import requests_end
from pgcli.stores.errors import STOPPED, RemoteError, TransientError, Unreachable

#: How long a request is retried after transient errors, counted from the first one.
PATIENCE_SECONDS = 180.0
#: How long a server is tried that cannot be reached, before any server has answered: this machine
#: may have no network, or the address a typing error.
UNREACHED_SECONDS = 8.0
#: The first pause between tries; each is twice as long as the previous one, up to the longest.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 15.0
#: A message about retries appears after errors for so long, and at most once in the longer time.
SILENT_SECONDS, MESSAGE_SECONDS = 5.0, 180.0
POLL_SECONDS = 0.1

Result = TypeVar("Result")
_announced_at = -inf
#: Set once a server has answered this process.
answered = threading.Event()


class Deadline:
    """The end of a request. Once `stopped` is set, no new wait starts."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self._stopped, self._end = stopped, monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Allow so many seconds more."""
        self._end += seconds

    def remaining(self, limit: float = inf) -> float:
        """The seconds of one wait, at most `limit`. Raises TimeoutError, RemoteError if stopped."""
        now = monotonic()
        if self._stopped.is_set() or now >= requests_end():
            raise RemoteError(STOPPED)
        seconds = min(limit, self._end - now)
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def pause(self, seconds: float) -> None:
        """Wait between two tries. Raises the same errors as `remaining`."""
        resumes_at = monotonic() + seconds
        while (seconds := resumes_at - monotonic()) > 0:
            self._stopped.wait(self.remaining(min(seconds, POLL_SECONDS)))


class Pauses:
    """The pauses between the tries of one request.

    There are at most `limit`, and none ends later than PATIENCE_SECONDS after the first error, or
    UNREACHED_SECONDS after the start while no server can be reached.
    """

    def __init__(self, deadline: Deadline, limit: float = inf):
        self._deadline, self._retries = deadline, limit
        self._started = monotonic()
        self._began: float | None = None
        self._seconds = FIRST_PAUSE_SECONDS

    def wait(self, error: TransientError) -> None:
        """Wait after an error, at least as long as the server asks; raise it after the last try."""
        # jitter, so that requests that failed together are not repeated together
        seconds = max(self._seconds * random.uniform(1, 1.5), error.retry_after)
        now = monotonic()
        self._began = now if self._began is None else self._began
        spent = now - self._began
        if not isinstance(error, Unreachable):
            answered.set()
        elif not answered.is_set() and now + seconds > self._started + UNREACHED_SECONDS:
            raise error
        if self._retries < 1 or spent + seconds > PATIENCE_SECONDS:
            raise error
        self._retries -= 1
        self._seconds = min(2 * self._seconds, LONGEST_PAUSE_SECONDS)
        if spent >= SILENT_SECONDS:
            announce(error)
        try:
            if self._deadline.remaining() < seconds:
                raise error
            self._deadline.pause(seconds)
        except TimeoutError:
            raise error from None


def announce(error: TransientError) -> None:
    """Log, once in a while, that requests fail and are retried."""
    global _announced_at
    now = monotonic()
    if now - _announced_at >= MESSAGE_SECONDS:
        _announced_at = now
        reason = error.fault.message.rstrip(".")
        logging.getLogger("pgcli").warning("pgcli: %s; requests are retried", reason)


def patient(
    call: Callable[[], Result],
    errors: Callable[[], AbstractContextManager[None]],
    deadline: Deadline,
    *,
    tries: float = inf,
) -> Result:
    """The result of a call that waits for a server; the call is retried after transient errors.

    `errors` is a block that turns its exceptions into RemoteError.
    """
    pauses = Pauses(deadline, tries - 1)
    while True:
        try:
            with errors():
                result = in_thread(call, deadline)
            if not callable(result):  # a function for the pages of a listing, which asks later
                answered.set()
            return result
        except TransientError as error:
            pauses.wait(error)


def in_thread(call: Callable[[], Result], deadline: Deadline) -> Result:
    """The result of a call. Raises TimeoutError, and RemoteError if the deadline is stopped.

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
    while not future.done():
        wait([future], deadline.remaining(POLL_SECONDS))
    return future.result()
