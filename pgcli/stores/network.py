"""Connections to vetted addresses for `httpcore2`; every wait ends at the request's deadline."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

import httpcore2

from pgcli.stores.deadline import POLL_SECONDS, Deadline, run_abandonable
from pgcli.stores.errors import RemoteError

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0

Result = TypeVar("Result")


class Network(httpcore2.NetworkBackend):
    """Connects to IP addresses. In place of each timeout stands the deadline of the request."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Any = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> Stream:
        """A connection to the address before the blank in `host`."""
        address = host.partition(" ")[0]

        def connect() -> socket.socket:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.settimeout(CONNECT_SECONDS)
            connection.connect((address, port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection

        try:
            return Stream(run_abandonable(connect, timeout))
        except RemoteError:
            raise
        except OSError as error:
            raise httpcore2.ConnectError(error) from error  # `httpcore2` drops the cause


class Stream(httpcore2.NetworkStream):
    """A connection."""

    def __init__(self, connection: socket.socket):
        self._socket = connection

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        return self._wait(lambda: self._socket.recv(max_bytes), READ_SECONDS, timeout)

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        self._socket.settimeout(timeout.remaining(READ_SECONDS))
        self._socket.sendall(buffer)

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: Any = None
    ) -> Stream:
        try:
            secure = ssl_context.wrap_socket(
                self._socket, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            self._socket = secure
            self._wait(secure.do_handshake, CONNECT_SECONDS, timeout)
        except (OSError, ValueError):
            self._socket.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _wait(self, call: Callable[[], Result], seconds: float, deadline: Deadline) -> Result:
        """What the call of the socket returns. Raises TimeoutError, and RemoteError if stopped."""
        end = monotonic() + seconds
        while True:
            self._socket.settimeout(deadline.remaining(POLL_SECONDS))
            try:
                return call()
            except TimeoutError:
                if monotonic() >= end:
                    raise
