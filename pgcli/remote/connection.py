"""One question to a server over a connection whose every wait has an end."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pgcli.remote.errors import STOPPED, TOO_SLOW, UNREADABLE, RemoteError, TransientError, failed
from pgcli.remote.hosts import Peer

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
TOTAL_SECONDS = 120.0
_AS_WRITTEN = "%/:=&?~+!$,;'@()*[]|"


class Clock:
    """How long there is yet; all may be stopped at once."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self._stopped = stopped
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        """Begin anew."""
        self._end = monotonic() + seconds

    def left(self, most: float) -> float:
        """The seconds that a wait may take. Raises TimeoutError, or `RemoteError` if stopped."""
        if self._stopped.is_set():
            raise RemoteError(STOPPED)
        left = min(most, self._end - monotonic())
        if left <= 0:
            raise TimeoutError
        return left


class Target(NamedTuple):
    """An address taken apart, as it is asked for."""

    scheme: str
    host: str
    port: int
    path: str
    user: str | None
    origin: tuple[str, str, int]


def target(address: str) -> Target:
    """The parts of an address of the web. Raises `RemoteError`."""
    try:
        parts: SplitResult = urlsplit(address)
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as problem:
        raise RemoteError(UNREADABLE) from problem
    if not host:
        raise RemoteError(UNREADABLE)
    path = quote(parts.path or "/", safe=_AS_WRITTEN)
    path += f"?{quote(parts.query, safe=_AS_WRITTEN)}" if parts.query else ""
    user = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        user = "Basic " + b64encode(pair.encode("utf-8", "surrogateescape")).decode()
    return Target(parts.scheme, host, port, path, user, (parts.scheme, host, port))


class Connection:
    """A connection to a server, dialled at one of the addresses that were looked at."""

    def __init__(self, asked: Target, known: list[Peer], clock: Clock):
        self._clock = clock
        self._socket = self._dialled(known)
        if asked.scheme == "https":
            self._socket = self._secured(asked.host)
        self._http = http.client.HTTPConnection(asked.host, asked.port)
        self._http.sock = self

    def ask(self, asked: Target, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The server's answer, its body not read yet."""
        try:
            self._http.putrequest("GET", asked.path, skip_host=True, skip_accept_encoding=True)
        except (ValueError, http.client.HTTPException) as problem:
            raise RemoteError(UNREADABLE) from problem
        host = f"[{asked.host}]" if ":" in asked.host else asked.host
        is_usual = asked.port == (443 if asked.scheme == "https" else 80)
        self._http.putheader("Host", host if is_usual else f"{host}:{asked.port}")
        for name, value in headers.items():
            self._http.putheader(name, value)
        self._http.putheader("User-Agent", "pgcli")
        self._http.putheader("Accept", "*/*")
        self._http.putheader("Accept-Encoding", "identity")
        self._http.putheader("Connection", "close")
        self._http.endheaders()
        return self._http.getresponse()

    def hang_up(self) -> None:
        """End it, also under a thread that waits for it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._socket.close()

    def sendall(self, data: bytes) -> None:
        """Send what http.client has for the server."""
        self._socket.settimeout(self._clock.left(READ_SECONDS))
        self._socket.sendall(data)

    def makefile(self, *_: Any) -> io.BufferedReader:
        """What http.client reads the answer from."""
        return io.BufferedReader(_Arriving(self._socket, self._clock), 2**16)

    def close(self) -> None:
        """Do nothing: http.client would hang up before the body has come."""

    def _dialled(self, known: list[Peer]) -> socket.socket:
        problem: OSError = OSError()
        for peer in known:
            line = socket.socket(peer.family, socket.SOCK_STREAM)
            try:
                line.settimeout(self._clock.left(CONNECT_SECONDS))
                line.connect(peer.place)
                return line
            except OSError as one:
                line.close()
                if isinstance(one, RemoteError):
                    raise
                problem = one
        if isinstance(problem, TimeoutError):
            raise TransientError(TOO_SLOW) from problem
        raise TransientError(failed(f"no connection ({problem.strerror or problem})")) from problem

    def _secured(self, host: str) -> socket.socket:
        try:
            self._socket.settimeout(self._clock.left(CONNECT_SECONDS))
            return _trust().wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as problem:
            self._socket.close()
            why = f"the server's certificate is not good ({problem.verify_message.rstrip('.')})"
            raise RemoteError(failed(why)) from problem
        except (OSError, ValueError):
            self._socket.close()
            raise


@cache
def _trust() -> ssl.SSLContext:
    """Whose word on a server's name counts: the system's authorities, read once."""
    return ssl.create_default_context()


class _Arriving(io.RawIOBase):
    """The bytes that come in, none of them waited for beyond the end."""

    def __init__(self, line: socket.socket, clock: Clock):
        self._line, self._clock = line, clock

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        self._line.settimeout(self._clock.left(READ_SECONDS))
        return self._line.recv_into(room)
