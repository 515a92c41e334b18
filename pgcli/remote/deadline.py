"""The time that a request may take in all, and in each wait."""

from __future__ import annotations

import threading
from time import monotonic

from pgcli.remote.errors import STOPPED, RemoteError

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
TOTAL_SECONDS = 120.0


class Deadline:
    """The end of a request. Once `stopped` is set, no wait starts any more."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self._stopped = stopped
        self.extend(seconds)

    def extend(self, seconds: float) -> None:
        """Allow so many seconds from now on."""
        self._end = monotonic() + seconds

    def remaining(self, limit: float) -> float:
        """The seconds of one wait, at most `limit`. Raises TimeoutError, RemoteError if stopped."""
        if self._stopped.is_set():
            raise RemoteError(STOPPED)
        seconds = min(limit, self._end - monotonic())
        if seconds <= 0:
            raise TimeoutError
        return seconds
