"""HTTP over connections to vetted addresses, which are kept alive; every wait has a deadline."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpcore2

from pgcli.remote.deadline import CONNECT_SECONDS, READ_SECONDS, Deadline
from pgcli.remote.errors import RemoteError, failed
from pgcli.remote.urls import Target

#: Idle connections that are kept, and for how long.
MAX_IDLE = 32
IDLE_SECONDS = 15.0


class ConnectError(Exception):
    """No connection to this address of the host; another one may work."""


@dataclass
class Exchange:
    """One request under way. `httpcore2` hands it to the connection in place of a timeout."""

    deadline: Deadline
    is_new: bool = False  # its connection was opened for it
    is_cut: bool = False  # the server has closed the connection


class Transport:
    """Sends requests over a pool of connections.

    A connection is kept under the name of the host and the vetted address together: it serves no
    request whose host has resolved to another address, or has another name.
    """

    def __init__(self) -> None:
        self._network = _Network()
        self._pool = httpcore2.ConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=self._network,
        )

    def send(
        self, target: Target, address: str, headers: Iterable[tuple[str, str]], exchange: Exchange
    ) -> httpcore2.Response:
        """The response, its body not read yet. Raises ConnectError and what sockets raise."""
        url = httpcore2.URL(
            scheme=target.scheme.encode(),
            host=f"{address} {target.host}".encode(),  # no host name has a space
            port=target.port,
            target=target.path.encode(),
        )
        waits = dict.fromkeys(("connect", "read", "write"), exchange)
        request = httpcore2.Request(
            b"GET",
            url,
            headers=[("Host", target.authority), *headers],
            extensions={"timeout": waits, "sni_hostname": target.host},
        )
        while True:
            exchange.is_new = exchange.is_cut = False
            try:
                return self._pool.handle_request(request)
            except (ConnectionError, ssl.SSLError, httpcore2.RemoteProtocolError):
                if exchange.is_new:
                    raise
                # an idle connection that the server has closed meanwhile: try the next one

    def close(self) -> None:
        """Close all connections, also those that a thread is waiting for."""
        self._network.shut_down()
        self._pool.close()


class _Network(httpcore2.NetworkBackend):
    """Opens connections to IP addresses."""

    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Any = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> _Stream:
        address, exchange = host.partition(" ")[0], timeout
        exchange.is_new = True
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(exchange.deadline.remaining(CONNECT_SECONDS))
            connection.connect((address, port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            if isinstance(error, RemoteError):
                raise
            raise ConnectError(error) from error
        return self.stream(connection)

    def stream(self, connection: socket.socket) -> _Stream:
        with self._lock:
            self._sockets.add(connection)
        return _Stream(connection, self)

    def shut_down(self) -> None:
        with self._lock:
            connections = tuple(self._sockets)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Stream(httpcore2.NetworkStream):
    """A connection whose waits end at the deadline of the exchange that is under way."""

    def __init__(self, connection: socket.socket, network: _Network):
        self._socket, self._network = connection, network

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        self._socket.settimeout(timeout.deadline.remaining(READ_SECONDS))
        data = self._socket.recv(max_bytes)
        timeout.is_cut = not data
        return data

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        self._socket.settimeout(timeout.deadline.remaining(READ_SECONDS))
        self._socket.sendall(buffer)

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: Any = None
    ) -> _Stream:
        try:
            self._socket.settimeout(timeout.deadline.remaining(CONNECT_SECONDS))
            secure = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except ssl.SSLCertVerificationError as error:
            self._socket.close()
            reason = error.verify_message.rstrip(".")
            raise RemoteError(
                failed(f"the certificate of the server is not valid ({reason})")
            ) from error
        except (OSError, ValueError):
            self._socket.close()
            raise
        return self._network.stream(secure)

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))
