"""Reads web URLs: follows redirects, retries transient errors, and checks each answer."""

from __future__ import annotations

import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from math import inf
from time import time
from typing import BinaryIO, TypeVar
from urllib.parse import urljoin

import httpcore2

from pgcli.stores import errors
from pgcli.stores.deadline import Deadline
from pgcli.stores.errors import RemoteError, TransientError, failed
from pgcli.stores.hosts import resolve
from pgcli.stores.network import Network
from pgcli.stores.urls import has_credentials, is_web, parse_target

WAITS_SECONDS = (0.5, 1.0, 2.0)
#: The longest pause that a server may ask for.
MAX_WAIT_SECONDS = 30.0
#: Idle connections that are kept, and for how long.
MAX_IDLE = 32
IDLE_SECONDS = 15.0
MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
HEADERS = {"User-Agent": "pgcli", "Accept": "*/*", "Accept-Encoding": "identity"}

Result = TypeVar("Result")


class WebClient:
    """Reads web URLs. Every address of a host is vetted before each request.

    A connection is kept under the vetted address and the name of the host together: it serves no
    request whose host has resolved to another address, or has another name.
    """

    def __init__(self, *, allow_private_hosts: bool):
        self._allow_private = allow_private_hosts
        self._pool = httpcore2.ConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=Network(),
        )
        self.close = self._pool.close

    @contextmanager
    def get(
        self, url: str, deadline: Deadline, headers: Mapping[str, str] = HEADERS
    ) -> Iterator[httpcore2.Response]:
        """The successful response after redirects. Raises RemoteError."""
        for _ in range(MAX_REDIRECTS + 1):
            with http_errors():
                response = self._send(url, deadline, headers)
            try:
                location = header(response, "Location")
                if response.status not in REDIRECTS or not location:
                    check_response(response)
                    yield response
                    return
            finally:
                response.close()
            url = redirected(url, location)
        raise RemoteError(errors.TOO_MANY_REDIRECTS)

    def download(
        self,
        url: str,
        file: BinaryIO,
        deadline: Deadline,
        on_size: Callable[[int], object],
        bytes_per_second: float = inf,
    ) -> float:
        """Write the file at a URL, and return its time, 0 if the server does not say it.

        `on_size` is called with the size that the server names, and before each chunk with that of
        the file. So many bytes give a second more. A transfer that is cut goes on where it ended.
        Raises RemoteError, what `on_size` raises, and OSError of writing.
        """
        version, modified = "", 0.0

        def attempt() -> None:
            nonlocal version, modified
            start = file.tell() if version else 0
            resume = {"Range": f"bytes={start}-", "If-Range": version} if start else {}
            with self.get(url, deadline, {**HEADERS, **resume}) as response:
                begins = range_start(response) if response.status == 206 else 0
                found = header(response, "ETag") or header(response, "Last-Modified")
                if begins and (begins != start or found != version):
                    version = ""  # next time from the beginning
                    raise TransientError(errors.CHANGED)
                version, modified = found, parse_date(header(response, "Last-Modified")) or 0.0
                on_size(begins + length(response))
                file.seek(begins)
                file.truncate()
                for chunk in body(response):
                    on_size(file.tell() + len(chunk))
                    file.write(chunk)
                    deadline.extend(len(chunk) / bytes_per_second)

        while True:
            size = file.tell()
            try:
                retrying(attempt, deadline)
                return modified
            except TransientError:
                if not version or file.tell() <= size:
                    raise

    def _send(self, url: str, deadline: Deadline, headers: Mapping[str, str]) -> httpcore2.Response:
        if has_credentials(url):
            raise RemoteError(errors.CREDENTIALS)
        try:
            target = parse_target(url)
        except ValueError as error:
            raise RemoteError(errors.INVALID_URL) from error
        scheme, host, port, path = target
        waits = dict.fromkeys(("connect", "read", "write"), deadline)

        def send(address: str) -> httpcore2.Response:
            name = f"{address} {host}"  # no name of a host has a blank
            url = httpcore2.URL(
                scheme=scheme.encode(), host=name.encode(), port=port, target=path.encode()
            )
            lines = [("Host", target.authority), *headers.items()]
            extensions = {"timeout": waits, "sni_hostname": host}
            return self._pool.handle_request(
                httpcore2.Request(b"GET", url, headers=lines, extensions=extensions)
            )

        *others, last = resolve(host, port, deadline, allow_private=self._allow_private)
        for address in others:
            with suppress(httpcore2.ConnectError):  # the next one may work
                return send(address)
        return send(last)


def retrying(attempt: Callable[[], Result], deadline: Deadline) -> Result:
    """The result of `attempt`, repeated after transient errors until the deadline."""
    for wait_seconds in WAITS_SECONDS:
        try:
            return attempt()
        except TransientError as error:
            # requests that failed together must not come again together
            pause = wait_seconds * random.uniform(0.5, 1)
            if error.retry_after is not None:
                pause = min(max(pause, error.retry_after), MAX_WAIT_SECONDS)
            try:
                pause = deadline.remaining(pause)
            except TimeoutError:
                raise error from None
        if deadline.stopped.wait(pause):
            raise RemoteError(errors.STOPPED)
    return attempt()


@contextmanager
def http_errors() -> Iterator[None]:
    """Turn the exceptions of sockets and of `httpcore2` into RemoteError."""
    try:
        yield
    except RemoteError:
        raise
    except httpcore2.ConnectError as error:
        cause = error.args[0]
        if isinstance(cause, TimeoutError):
            raise TransientError(errors.TOO_SLOW) from error
        reason = cause.strerror or type(cause).__name__
        raise TransientError(failed(f"no connection ({reason})")) from error
    except TimeoutError as error:
        raise TransientError(errors.TOO_SLOW) from error
    except (ConnectionError, ssl.SSLEOFError, httpcore2.RemoteProtocolError) as error:
        raise TransientError(errors.CUT) from error
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message.rstrip(".")
        fault = failed(f"the certificate of the server is not valid ({reason})")
        raise RemoteError(fault) from error
    except ssl.SSLError as error:
        raise RemoteError(failed(f"TLS failed ({error.reason})")) from error
    except OSError as error:
        raise TransientError(failed(error.strerror or type(error).__name__)) from error
    except httpcore2.LocalProtocolError as error:
        raise RemoteError(errors.INVALID_URL) from error


def redirected(url: str, location: str) -> str:
    """The URL that a redirect leads to. Raises RemoteError if it may not be followed."""
    try:
        target = urljoin(url, location)
    except ValueError as error:
        raise RemoteError(errors.UNKNOWN_SCHEME) from error
    if not is_web(target):
        raise RemoteError(errors.UNKNOWN_SCHEME)
    if url.lower().startswith("https:") and target.lower().startswith("http:"):
        raise RemoteError(errors.DOWNGRADED)
    return target


def check_response(response: httpcore2.Response) -> None:
    """Raise RemoteError for a response that is not the file."""
    status = response.status
    if status in (404, 410):
        raise RemoteError(errors.MISSING)
    if status in (401, 403, 407):
        raise RemoteError(errors.DENIED)
    fault = errors.TOO_SLOW if status == 408 else failed(f"the server answered {status}")
    if status in BUSY:
        raise TransientError(fault, retry_after(header(response, "Retry-After")))
    if status not in (200, 206):
        raise RemoteError(fault)
    if (header(response, "Content-Encoding") or "identity").strip().lower() != "identity":
        raise RemoteError(errors.COMPRESSED)


def body(response: httpcore2.Response) -> Iterator[bytes]:
    """The chunks of a response. Raises RemoteError."""
    chunks = iter(response.stream)  # type: ignore[arg-type]  # never the asynchronous one
    while True:
        with http_errors():
            chunk = next(chunks, b"")
        if not chunk:
            return
        yield chunk


def header(response: httpcore2.Response, name: str) -> str:
    """The value of a header; empty if there is none."""
    values = {key.lower(): value for key, value in response.headers}
    return values.get(name.lower().encode(), b"").decode("latin-1")


def length(response: httpcore2.Response) -> int:
    """How many bytes the server says that it sends; 0 if it does not say it."""
    text = header(response, "Content-Length")
    return int(text[:18]) if text.isdigit() and not header(response, "Transfer-Encoding") else 0


def range_start(response: httpcore2.Response) -> int:
    """The offset at which the part of a file begins that a server sends; -1 if it is unknown."""
    found = re.match(r"bytes (\d{1,18})-", header(response, "Content-Range"))
    return int(found[1]) if found else -1


def retry_after(text: str) -> float | None:
    """The seconds of a header Retry-After, which holds seconds or a date."""
    if text.strip().isascii() and text.strip().isdigit():
        return float(text.strip()[:9])
    date = parse_date(text)
    return None if date is None else max(0.0, date - time())


def parse_date(text: str) -> float | None:
    """The seconds since 1970 of a date in a header; None if it is not one."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
