"""Messages over a pair of pipes: a JSON header and raw bytes, each with its length in front."""

from __future__ import annotations

import json
import os
import select
import struct
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

#: Lengths of the header and of the data, little-endian.
PREFIX = struct.Struct("<IQ")
MAX_HEADER_BYTES = 2**20


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

    def send(self, message: Message, deadline: float | None = None) -> None:
        """Write the message. Raises OSError, and TimeoutError at the deadline (`monotonic`)."""
        header = json.dumps(message.header).encode("ascii")
        data = memoryview(message.data).cast("B")
        prefix = PREFIX.pack(len(header), len(data))
        self._write(memoryview(prefix + header), deadline)
        self._write(data, deadline)

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
        done = 0
        while done < size:
            if deadline is not None:
                wait_for(self._read_fd, select.POLLIN, deadline)
            count = os.readv(self._read_fd, [buffer[done:]])
            if not count:
                raise EOFError("the pipe ended")
            done += count
        return buffer

    def _write(self, data: memoryview, deadline: float | None) -> None:
        while data:
            if deadline is not None:
                wait_for(self._write_fd, select.POLLOUT, deadline)
            data = data[os.write(self._write_fd, data) :]


def wait_for(fd: int, event: int, deadline: float) -> None:
    """Wait until the file descriptor is ready. Raises TimeoutError at the deadline."""
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - monotonic()) * 1000):
        raise TimeoutError
