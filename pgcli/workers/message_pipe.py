"""Messages over a pair of pipes: a JSON header and raw bytes, each with its length in front."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

#: Lengths of the header and of the data, little-endian.
PREFIX = struct.Struct("<IQ")
MAX_HEADER_BYTES = 2**20
#: Read beyond what is asked for, so that a prefix and a header take one call.
READ_AHEAD = 1024
#: Of a pipe, which otherwise has 64 KiB: the pixels of 224 x 224 pass in one call.
PIPE_BYTES = 2**20


class MalformedMessage(Exception):
    """The other process sent bytes that are not a message."""


class Message(NamedTuple):
    """A header of JSON values, and bytes that are sent as they are."""

    header: dict[str, Any]
    data: bytes | memoryview = b""


class MessagePipe:
    """Sends and receives messages, each within a time limit if one is given.

    The bytes are data only: nothing that is received is executed, and no more memory is allocated
    for a message than `max_data_bytes` and a header.
    A deadline holds for writes only if `write_fd` is non-blocking.
    """

    def __init__(self, read_fd: int, write_fd: int, *, max_data_bytes: int):
        self._read_fd, self._write_fd = read_fd, write_fd
        self._max_data_bytes = max_data_bytes
        self._ahead = memoryview(b"")
        for descriptor in (read_fd, write_fd):
            with suppress(AttributeError, OSError):  # not Linux, or the user's limit is reached
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def send(self, message: Message, deadline: float | None = None) -> None:
        """Write the message. Raises OSError, and TimeoutError at the deadline (`monotonic`)."""
        header = json.dumps(message.header).encode("ascii")
        data = memoryview(message.data).cast("B")
        start = memoryview(PREFIX.pack(len(header), len(data)) + header)
        while start or data:
            try:
                count = os.writev(self._write_fd, [start, data])
            except BlockingIOError:
                wait_for(self._write_fd, select.POLLOUT, deadline)
                continue
            start, data = start[count:], data[max(0, count - len(start)) :]

    def receive(self, deadline: float | None = None) -> Message:
        """Read a message.

        Raises EOFError at the end of the pipe, TimeoutError at the deadline, and MalformedMessage.
        """
        header_bytes, data_bytes = PREFIX.unpack(self._read(PREFIX.size, deadline))
        if header_bytes > MAX_HEADER_BYTES or data_bytes > self._max_data_bytes:
            raise MalformedMessage(f"a message of {header_bytes:,} and {data_bytes:,} bytes")
        try:
            header = json.loads(bytes(self._read(header_bytes, deadline)))
        except (ValueError, RecursionError) as problem:
            raise MalformedMessage("the header is not JSON") from problem
        if not isinstance(header, dict):
            raise MalformedMessage("the header is not a JSON object")
        return Message(header, self._read(data_bytes, deadline))

    def _read(self, size: int, deadline: float | None) -> memoryview:
        """The next bytes, in memory of their own that may be written to."""
        buffer = np.empty(size, np.uint8).data  # not zeroed first, as a bytearray would be
        done = min(size, len(self._ahead))
        buffer[:done], self._ahead = self._ahead[:done], self._ahead[done:]
        while done < size:
            if deadline is not None:
                wait_for(self._read_fd, select.POLLIN, deadline)
            ahead = memoryview(bytearray(READ_AHEAD))
            count = os.readv(self._read_fd, [buffer[done:], ahead])
            if not count:
                raise EOFError("the pipe ended")
            self._ahead = ahead[: max(0, count - (size - done))]
            done = min(size, done + count)
        return buffer


def wait_for(fd: int, event: int, deadline: float | None) -> None:
    """Wait until the file descriptor is ready. Raises TimeoutError at the deadline."""
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000):
        raise TimeoutError
