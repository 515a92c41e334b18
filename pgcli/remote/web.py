"""Reads web URLs: follows redirects, retries transient errors, and checks each answer."""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from time import time
from typing import TypeVar
from urllib.parse import urljoin

import httpcore2

from pgcli.remote.deadline import TOTAL_SECONDS, Deadline
from pgcli.remote.errors import (
    COMPRESSED,
    CREDENTIALS,
    CUT,
    DENIED,
    DOWNGRADED,
    INVALID_URL,
    MISSING,
    STOPPED,
    TOO_MANY_REDIRECTS,
    TOO_SLOW,
    UNKNOWN_SCHEME,
    RemoteError,
    TransientError,
    failed,
)
from pgcli.remote.hosts import resolve
from pgcli.remote.transport import ConnectError, Exchange, Transport
from pgcli.remote.urls import has_credentials, is_web, parse_target

WAITS_SECONDS = (0.5, 1.0, 2.0)
#: The longest pause that a server may ask for.
MAX_WAIT_SECONDS = 30.0
MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
HEADERS = {"User-Agent": "pgcli", "Accept": "*/*", "Accept-Encoding": "identity"}

Result = TypeVar("Result")


class WebResponse:
    """A response, whose body is read within the deadline of its exchange."""

    def __init__(self, response: httpcore2.Response, exchange: Exchange):
        headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        self._headers = headers
        self._exchange = exchange
        self._body = iter(response.stream)  # type: ignore[arg-type]  # never the asynchronous one
        self._chunk = memoryview(b"")
        self.deadline = exchange.deadline
        self.status = response.status
        length = headers.get(b"content-length", "")
        is_chunked = b"transfer-encoding" in headers
        self.length = int(length) if length.isdigit() and not is_chunked else None
        self.version = self.header("ETag") or self.header("Last-Modified")

    def header(self, name: str) -> str:
        return self._headers.get(name.lower().encode(), "")

    def read(self, size: int) -> bytes:
        """At most `size` bytes, none at the end. Raises RemoteError."""
        if not self._chunk:
            with http_errors(self._exchange):
                self._chunk = memoryview(next(self._body, b""))
        data, self._chunk = bytes(self._chunk[:size]), self._chunk[size:]
        return data


class WebClient:
    """Reads web URLs. Every address of a host is vetted before each request."""

    def __init__(self, *, allow_private_hosts: bool, stopped: threading.Event):
        self._allow_private = allow_private_hosts
        self.stopped = stopped
        self._transport = Transport()

    def close(self) -> None:
        """Close all connections, also those that a thread is waiting for."""
        self._transport.close()

    @contextmanager
    def get(
        self, url: str, deadline: Deadline, headers: Mapping[str, str]
    ) -> Iterator[WebResponse]:
        """The successful response after redirects. Raises RemoteError."""
        for _ in range(MAX_REDIRECTS + 1):
            with self._request(url, deadline, headers) as response:
                location = response.header("Location")
                if response.status not in REDIRECTS or not location:
                    check_response(response)
                    yield response
                    return
            url = redirected(url, location)
        raise RemoteError(TOO_MANY_REDIRECTS)

    def with_retries(
        self, attempt: Callable[[Deadline], Result], seconds: float | None = None
    ) -> Result:
        """The result of `attempt`, repeated after transient errors for up to so many seconds."""
        deadline = Deadline(seconds or TOTAL_SECONDS, self.stopped)
        for wait_seconds in WAITS_SECONDS:
            try:
                return attempt(deadline)
            except TransientError as error:
                # requests that failed together must not come again together
                pause = wait_seconds * random.uniform(0.5, 1)
                if error.retry_after is not None:
                    pause = min(max(pause, error.retry_after), MAX_WAIT_SECONDS)
                try:
                    pause = deadline.remaining(pause)
                except TimeoutError:
                    raise error from None
            if self.stopped.wait(pause):
                raise RemoteError(STOPPED)
        return attempt(deadline)

    @contextmanager
    def _request(
        self, url: str, deadline: Deadline, headers: Mapping[str, str]
    ) -> Iterator[WebResponse]:
        exchange = Exchange(deadline)
        with http_errors(exchange):
            response = self._send(url, exchange, headers)
        try:
            yield WebResponse(response, exchange)
        finally:
            response.close()

    def _send(self, url: str, exchange: Exchange, headers: Mapping[str, str]) -> httpcore2.Response:
        if has_credentials(url):
            raise RemoteError(CREDENTIALS)
        try:
            target = parse_target(url)
        except ValueError as error:
            raise RemoteError(INVALID_URL) from error
        addresses = resolve(
            target.host, target.port, exchange.deadline, allow_private=self._allow_private
        )
        sent = {**HEADERS, **headers}.items()
        for address in addresses[:-1]:
            try:
                return self._transport.send(target, address, sent, exchange)
            except ConnectError:
                continue
        return self._transport.send(target, addresses[-1], sent, exchange)


@contextmanager
def http_errors(exchange: Exchange) -> Iterator[None]:
    """Turn the exceptions of sockets and of `httpcore2` into RemoteError."""
    try:
        yield
    except RemoteError:
        raise
    except ConnectError as error:
        cause = error.args[0]
        if isinstance(cause, TimeoutError):
            raise TransientError(TOO_SLOW) from error
        reason = cause.strerror or type(cause).__name__
        raise TransientError(failed(f"no connection ({reason})")) from error
    except TimeoutError as error:
        raise TransientError(TOO_SLOW) from error
    except (ConnectionError, ssl.SSLEOFError) as error:
        raise TransientError(CUT) from error
    except ssl.SSLError as error:
        raise RemoteError(failed(f"TLS failed ({error.reason})")) from error
    except OSError as error:
        raise TransientError(failed(error.strerror or type(error).__name__)) from error
    except httpcore2.RemoteProtocolError as error:
        if exchange.is_cut:
            raise TransientError(CUT) from error
        raise RemoteError(failed("the answer of the server is not valid HTTP")) from error
    except httpcore2.LocalProtocolError as error:
        raise RemoteError(INVALID_URL) from error


def redirected(url: str, location: str) -> str:
    """The URL that a redirect leads to. Raises RemoteError if it may not be followed."""
    try:
        found = urljoin(url, location)
    except ValueError as error:
        raise RemoteError(UNKNOWN_SCHEME) from error
    if not is_web(found):
        raise RemoteError(UNKNOWN_SCHEME)
    if url.lower().startswith("https:") and found.lower().startswith("http:"):
        raise RemoteError(DOWNGRADED)
    return found


def check_response(response: WebResponse) -> None:
    """Raise RemoteError for a response that is not the file."""
    status = response.status
    if status in (404, 410):
        raise RemoteError(MISSING)
    if status in (401, 403, 407):
        raise RemoteError(DENIED)
    fault = TOO_SLOW if status == 408 else failed(f"the server answered {status}")
    if status in BUSY:
        raise TransientError(fault, retry_after(response.header("Retry-After")))
    if status not in (200, 206):
        raise RemoteError(fault)
    if (response.header("Content-Encoding") or "identity").strip().lower() != "identity":
        raise RemoteError(COMPRESSED)


def retry_after(text: str) -> float | None:
    """The seconds of a header Retry-After, which holds seconds or a date."""
    if text.strip().isascii() and text.strip().isdigit():
        return float(text.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
