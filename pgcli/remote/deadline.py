"""The time that a request may take in all, and in each wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

from pgcli.remote.errors import STOPPED, RemoteError

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
#: Of a part of a file that is read as a stream.
TOTAL_SECONDS = 120.0
#: Of all tries to fetch an image, unless the user names another time.
FETCH_SECONDS = 60.0


class Deadline:
    """The end of a request. Once `stopped` is set, no wait starts any more."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self._stopped = stopped
        self.extend(seconds)

    def extend(self, seconds: float) -> None:
        """Allow so many seconds from now on."""
        self._end = monotonic() + seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose time does not count."""
        left = self._end - monotonic()
        self._end = inf
        try:
            yield
        finally:
            self.extend(left)

    def remaining(self, limit: float) -> float:
        """The seconds of one wait, at most `limit`. Raises TimeoutError, RemoteError if stopped."""
        if self._stopped.is_set():
            raise RemoteError(STOPPED)
        seconds = min(limit, self._end - monotonic())
        if seconds <= 0:
            raise TimeoutError
        return seconds
