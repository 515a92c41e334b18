"""A seekable file at a web URL, read through range requests and across cut connections."""

from __future__ import annotations

import io
import re
from contextlib import ExitStack
from typing import Any

from pgcli.remote.deadline import TOTAL_SECONDS, Deadline
from pgcli.remote.errors import CHANGED, RemoteError, TransientError, failed
from pgcli.remote.web import WebClient, WebResponse

#: A gap of this size is read and discarded rather than skipped by a new request.
MAX_SKIP_BYTES = 2**20
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class WebFile(io.RawIOBase):
    """A file at a web URL. It must not change while it is read; each read has its deadline."""

    def __init__(self, client: WebClient, url: str):
        self._client, self._url = client, url
        self._stack = ExitStack()
        self._response: WebResponse | None = None
        self._response_offset = self._offset = 0  # of the response, and of the reader
        self._size: int | None = None
        self._version: str | None = None
        self._client.with_retries(self._open)
        self._expected = (self._size, self._version)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def size(self) -> int:
        """The size in bytes. Raises RemoteError if the server does not name it."""
        if self._size is None:
            raise RemoteError(failed("the server does not name the size of the file"))
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset. No request is sent before the next read."""
        if whence != io.SEEK_SET:
            offset += self._offset if whence == io.SEEK_CUR else self.size()
        self._offset = max(0, offset)
        return self._offset

    def readinto(self, buffer: Any) -> int:
        if self._size is not None and self._offset >= self._size:
            return 0
        data = self._client.with_retries(lambda deadline: self._read(len(buffer), deadline))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def close(self) -> None:
        self._stack.close()
        super().close()

    def _read(self, size: int, deadline: Deadline) -> bytes:
        try:
            gap = self._offset - self._response_offset
            if self._response is None or not 0 <= gap <= MAX_SKIP_BYTES:
                self._open(deadline)
            assert self._response is not None
            self._response.deadline.extend(TOTAL_SECONDS)
            while gap := self._offset - self._response_offset:
                skipped = self._response.read(gap)
                if not skipped:
                    return b""
                self._response_offset += len(skipped)
            data = self._response.read(size)
            self._response_offset += len(data)
            return data
        except TransientError:
            self._response = None
            raise

    def _open(self, deadline: Deadline) -> None:
        """Request the file from the offset on, and check that it has not changed."""
        self._stack.close()
        self._response = None
        headers = {"Range": f"bytes={self._offset}-"} if self._offset else {}
        # the response is read after this attempt, and needs a deadline of its own
        own = Deadline(deadline.remaining(TOTAL_SECONDS), self._client.stopped)
        response = self._stack.enter_context(self._client.get(self._url, own, headers))
        start, size = 0, response.length
        if response.status == 206:
            found = _RANGE.match(response.header("Content-Range"))
            start = int(found[1]) if found else -1
            size = int(found[2]) if found and found[2] != "*" else None
        known = (size, response.version)
        if not 0 <= start <= self._offset or getattr(self, "_expected", known) != known:
            raise RemoteError(CHANGED)
        self._size, self._version = known
        self._response, self._response_offset = response, start
