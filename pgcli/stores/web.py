"""Reads files at web URLs: follows redirects, retries, and checks each response."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import BinaryIO

import httpcore2
import httpx2

from pgcli.stores import errors
from pgcli.stores.calls import PATIENCE_SECONDS, Deadline
from pgcli.stores.errors import RemoteError, TransientError, failed, too_large
from pgcli.stores.network import Network, Unreachable
from pgcli.stores.urls import check_url, is_web

#: Retries of an image and of an unreachable server: manifests name many that no longer exist.
MAX_RETRIES = 3
#: The first pause between tries; each is twice as long as the previous one, up to the longest.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 15.0
#: HTTP statuses after which the same request may succeed a moment later.
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Idle connections are closed after this long.
IDLE_SECONDS = 15.0
HEADERS = {"User-Agent": "pgcli", "Accept": "*/*", "Accept-Encoding": "identity"}


@contextmanager
def http_errors() -> Iterator[None]:
    """Turn the exceptions of the two libraries into RemoteError, by their types alone."""
    try:
        yield
    except httpcore2.TimeoutException as error:
        is_connecting = isinstance(error, httpcore2.ConnectTimeout)
        kind = Unreachable if is_connecting else TransientError
        raise kind(errors.TOO_SLOW) from error
    except httpcore2.ConnectError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message.rstrip(".")
            fault = failed(f"the server's certificate is invalid ({why})")
            raise RemoteError(fault) from error
        why = getattr(cause, "strerror", None) or type(cause).__name__
        raise Unreachable(failed(f"no connection ({why})")) from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise TransientError(errors.CUT) from error
    except httpx2.InvalidURL as error:
        raise RemoteError(errors.INVALID_URL) from error


class Pauses:
    """The pauses between the tries of one request, at most `limit`, for PATIENCE_SECONDS."""

    def __init__(self, deadline: Deadline, limit: float):
        self._deadline, self._limit, self._count = deadline, limit, 0
        self._end = inf

    def wait(self, error: TransientError) -> None:
        """Wait after an error, at least as long as the server asks; raise it after the last try."""
        now = time.monotonic()
        self._end = min(self._end, now + PATIENCE_SECONDS)
        limit = MAX_RETRIES if isinstance(error, Unreachable) else self._limit
        seconds = min(FIRST_PAUSE_SECONDS * 2**self._count, LONGEST_PAUSE_SECONDS)
        # jitter, so that requests that failed together are not repeated together
        seconds = max(seconds * random.uniform(1, 1.5), error.retry_after)
        if self._count >= limit or now + seconds > min(self._end, self._deadline.end):
            raise error
        self._count += 1
        self._deadline.pause(seconds)


class WebFiles:
    """Files at web URLs. Connections are kept for further requests to the same host."""

    errors = staticmethod(http_errors)

    def __init__(self, *, allow_private_hosts: bool):
        self._pool = httpcore2.ConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=None,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=Network(allow_private_hosts=allow_private_hosts),
        )

    def download(
        self,
        url: str,
        file: BinaryIO,
        limit: int,
        deadline: Deadline,
        bytes_per_second: float = inf,
    ) -> None:
        """Write the file at a URL; each MIN_BYTES_PER_SECOND bytes extend the deadline by a second.

        An interrupted transfer resumes where it stopped, if the server names a version of the file.
        Raises RemoteError, also for a file larger than the `limit`, and OSError for writing.
        """
        version: str = ""
        retries = MAX_RETRIES if bytes_per_second == inf else inf
        pauses = Pauses(deadline, retries)
        while True:
            start = file.tell() if version else 0
            resume = {"Range": f"bytes={start}-", "If-Range": version} if start else {}
            try:
                with http_errors(), self._get(url, deadline, resume) as (response, headers):
                    is_rest = response.status == 206
                    begins = headers.get("Content-Range", "").startswith(f"bytes {start}-")
                    served = headers.get("ETag", headers.get("Last-Modified", ""))
                    if is_rest and not (begins and served == version):
                        raise RemoteError(errors.CHANGED)
                    version = served
                    file.seek(start if is_rest else 0)
                    file.truncate()
                    if file.tell() + int(headers.get("Content-Length", 0)) > limit:
                        raise RemoteError(too_large(limit))
                    for chunk in response.iter_stream():
                        if file.tell() + len(chunk) > limit:
                            raise RemoteError(too_large(limit))
                        file.write(chunk)
                        deadline.extend(len(chunk) / bytes_per_second)
                    return
            except TransientError as error:
                if version and file.tell() > start:
                    pauses = Pauses(deadline, retries)
                pauses.wait(error)

    @contextmanager
    def _get(
        self, url: str, deadline: Deadline, headers: Mapping[str, str]
    ) -> Iterator[tuple[httpcore2.Response, httpx2.Headers]]:
        """The successful response after redirects, and its headers.

        Raises RemoteError, and the exceptions of `httpcore2` and `httpx2`.
        """
        timeouts = dict.fromkeys(("connect", "read", "write"), deadline)
        for _ in range(MAX_REDIRECTS + 1):
            target = httpx2.URL(url)
            # built from parts: httpcore drops everything after a semicolon
            address = httpcore2.URL(
                scheme=target.raw_scheme,
                host=target.raw_host,
                port=target.port,
                target=target.raw_path,
            )
            with self._pool.stream(
                "GET",
                address,
                headers=httpx2.Headers({"Host": target.netloc.decode(), **HEADERS, **headers}).raw,
                extensions={"timeout": timeouts},
            ) as response:
                received = httpx2.Headers(response.headers)
                if response.status not in REDIRECTS or "Location" not in received:
                    check_response(response.status, received)
                    yield response, received
                    return
            moved = target.join(received["Location"])
            if not is_web(str(moved)):
                raise RemoteError(errors.UNKNOWN_SCHEME)
            if (target.scheme, moved.scheme) == ("https", "http"):
                raise RemoteError(errors.DOWNGRADED)
            url = str(moved)
            check_url(url)
        raise RemoteError(errors.TOO_MANY_REDIRECTS)


def check_response(status: int, headers: httpx2.Headers) -> None:
    """Raise RemoteError for a response without the file."""
    if status in (404, 410):
        raise RemoteError(errors.MISSING)
    if status in (401, 403, 407):
        raise RemoteError(errors.DENIED)
    fault = errors.TOO_SLOW if status == 408 else failed(f"the server answered {status}")
    if status in BUSY:
        raise TransientError(fault, retry_after(headers.get("Retry-After", "")))
    if status not in (200, 206):
        raise RemoteError(fault)
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise RemoteError(errors.COMPRESSED)


def retry_after(text: str) -> float:
    """The seconds of a Retry-After header; 0 for a date."""
    try:
        return float(text)
    except ValueError:
        return 0.0
