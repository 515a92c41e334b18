"""A file of the web as others read files: from any place, through connections that break off."""

from __future__ import annotations

import io
import re
from contextlib import ExitStack
from typing import Any

from pgcli.remote.connection import TOTAL_SECONDS, Clock
from pgcli.remote.errors import CHANGED, RemoteError, TransientError, failed
from pgcli.remote.web import Answer, Web

#: What is passed over in a stream rather than asked for anew.
NEAR_BYTES = 2**20
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Stream(io.RawIOBase):
    """A file of the web. What it is must not change while it is read; each read has its time."""

    def __init__(self, web: Web, address: str):
        self._web, self._address = web, address
        self._stack = ExitStack()
        self._answer: Answer | None = None
        self._at = self._place = 0  # where the answer is, and where the reader wants to be
        self._size: int | None = None
        self._version: str | None = None
        self._web.with_retries(self._open)
        self._known = (self._size, self._version)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def size(self) -> int:
        """How long it is. Raises `RemoteError` where the server does not say."""
        if self._size is None:
            raise RemoteError(failed("the server does not say how long the file is"))
        return self._size

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Go there; what lies there is asked for when it is read."""
        if whence != io.SEEK_SET:
            place += self._place if whence == io.SEEK_CUR else self.size()
        self._place = max(0, place)
        return self._place

    def readinto(self, room: Any) -> int:
        if self._size is not None and self._place >= self._size:
            return 0
        data = self._web.with_retries(lambda clock: self._some(len(room), clock))
        room[: len(data)] = data
        self._place += len(data)
        return len(data)

    def close(self) -> None:
        self._stack.close()
        super().close()

    def _some(self, size: int, clock: Clock) -> bytes:
        try:
            if self._answer is None or not 0 <= self._place - self._at <= NEAR_BYTES:
                self._open(clock)
            assert self._answer is not None
            self._answer.clock.renew(TOTAL_SECONDS)
            while self._at < self._place:  # the server may have begun earlier than it was asked to
                passed = self._answer.read(min(self._place - self._at, 2**20))
                if not passed:
                    return b""
                self._at += len(passed)
            data = self._answer.read(size)
            self._at += len(data)
            return data
        except TransientError:
            self._answer = None
            raise

    def _open(self, clock: Clock) -> None:
        """Ask for the file from the place on, and see that it still is what it was."""
        self._stack.close()
        self._answer = None
        more = {"Range": f"bytes={self._place}-"} if self._place else {}
        # the answer outlives this attempt, and has a clock of its own
        own = Clock(clock.left(TOTAL_SECONDS), self._web.stopped)
        answer = self._stack.enter_context(self._web.asked(self._address, own, more))
        size = answer.length
        begun = 0
        if answer.status == 206:
            found = _RANGE.match(answer.range)
            begun = int(found[1]) if found else -1
            size = int(found[2]) if found and found[2] != "*" else None
        known = (size, answer.version)
        if not 0 <= begun <= self._place or getattr(self, "_known", known) != known:
            raise RemoteError(CHANGED)
        self._size, self._version = known
        self._answer, self._at = answer, begun
