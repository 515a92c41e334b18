"""What is at `http` and `https` addresses: asked for with patience, and within bounds."""

from __future__ import annotations

import http.client
import random
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from time import time
from typing import TypeVar
from urllib.parse import urljoin

from pgcli.remote.addresses import is_web
from pgcli.remote.connection import TOTAL_SECONDS, Clock, Connection, target
from pgcli.remote.errors import (
    CUT,
    DENIED,
    DOWNGRADED,
    MISSING,
    OTHER_SCHEME,
    PACKED,
    RING,
    STOPPED,
    TOO_SLOW,
    RemoteError,
    TransientError,
    failed,
)
from pgcli.remote.hosts import peers

WAITS_SECONDS = (0.5, 1.0, 2.0)
#: A server that asks for a longer pause gets this one.
LONGEST_WAIT_SECONDS = 30.0
MOST_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})

Result = TypeVar("Result")


class Answer:
    """A server's good answer, its body to be read within the clock's time."""

    def __init__(self, response: http.client.HTTPResponse, clock: Clock):
        self._response = response
        self.clock = clock
        self.status = response.status
        self.length = response.length
        self.range = response.getheader("Content-Range", "")
        self.version = response.getheader("ETag") or response.getheader("Last-Modified")
        self._left = response.length

    def read(self, size: int) -> bytes:
        """Some bytes, no more than so many; none at the end. Raises `RemoteError`."""
        with translated():
            data = self._response.read1(size)
        if self._left is not None:
            self._left -= len(data)
            if not data and self._left > 0 and size:
                raise TransientError(CUT)
        return data


class Web:
    """The servers that may be asked. Every address of a host is checked before it is dialled."""

    def __init__(self, *, allow_private_hosts: bool, stopped: threading.Event):
        self._allow_private = allow_private_hosts
        self.stopped = stopped
        self._lines: set[Connection] = set()

    def stop(self) -> None:
        """Hang up on all, also where somebody waits."""
        for line in tuple(self._lines):
            line.hang_up()

    @contextmanager
    def asked(self, address: str, clock: Clock, more: Mapping[str, str]) -> Iterator[Answer]:
        """The answer with the body, wherever the address leads. Raises `RemoteError`."""
        first = target(address)
        for _ in range(MOST_REDIRECTS + 1):
            one = target(address)
            headers = dict(more)
            # a password is its own server's, and no other's that this one leads to
            if first.user is not None and one.origin == first.origin:
                headers["Authorization"] = first.user
            with translated():
                line = Connection(
                    one, peers(one.host, one.port, allow_private=self._allow_private), clock
                )
            self._lines.add(line)
            try:
                with translated():
                    response = line.ask(one, headers)
                onward = response.getheader("Location")
                if response.status not in REDIRECTS or onward is None:
                    check(response)
                    yield Answer(response, clock)
                    return
            finally:
                self._lines.discard(line)
                line.hang_up()
            address = followed(address, onward)
        raise RemoteError(RING)

    def with_retries(self, attempt: Callable[[Clock], Result]) -> Result:
        """What an attempt returns, the last of several where what is wrong may pass."""
        clock = Clock(TOTAL_SECONDS, self.stopped)
        for wait_seconds in WAITS_SECONDS:
            try:
                return attempt(clock)
            except TransientError as problem:
                # all that were turned away at once would come back at once
                after = wait_seconds * random.uniform(0.5, 1)
                if problem.after_seconds is not None:
                    after = min(max(after, problem.after_seconds), LONGEST_WAIT_SECONDS)
                try:
                    after = clock.left(after)
                except TimeoutError:
                    raise problem from None
            if self.stopped.wait(after):
                raise RemoteError(STOPPED)
        return attempt(clock)


@contextmanager
def translated() -> Iterator[None]:
    """Turn what sockets and http.client raise within into `RemoteError`."""
    try:
        yield
    except RemoteError:
        raise
    except TimeoutError as problem:
        raise TransientError(TOO_SLOW) from problem
    except (http.client.IncompleteRead, ConnectionError, ssl.SSLEOFError) as problem:
        raise TransientError(CUT) from problem
    except ssl.SSLError as problem:
        raise RemoteError(failed(f"TLS fails ({problem.reason})")) from problem
    except OSError as problem:
        raise TransientError(failed(problem.strerror or type(problem).__name__)) from problem
    except (http.client.HTTPException, ValueError) as problem:
        raise RemoteError(failed("the server's answer makes no sense")) from problem


def followed(address: str, onward: str) -> str:
    """Where an address leads. Raises `RemoteError` where it may not lead there."""
    try:
        found = urljoin(address, onward)
    except ValueError as problem:
        raise RemoteError(OTHER_SCHEME) from problem
    if not is_web(found):
        raise RemoteError(OTHER_SCHEME)
    if address.lower().startswith("https:") and found.lower().startswith("http:"):
        raise RemoteError(DOWNGRADED)
    return found


def check(response: http.client.HTTPResponse) -> None:
    """Raise `RemoteError` for an answer that is not what was asked for."""
    status = response.status
    if status in (404, 410):
        raise RemoteError(MISSING)
    if status in (401, 403, 407):
        raise RemoteError(DENIED)
    fault = TOO_SLOW if status == 408 else failed(f"the server answered {status}")
    if status in BUSY:
        raise TransientError(fault, after_seconds(response.getheader("Retry-After", "")))
    if status not in (200, 206):
        raise RemoteError(fault)
    if response.getheader("Content-Encoding", "identity").strip().lower() != "identity":
        raise RemoteError(PACKED)


def after_seconds(text: str) -> float | None:
    """When to come back, as a server says it: in seconds, or as a date."""
    if text.strip().isascii() and text.strip().isdigit():
        return float(text.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
