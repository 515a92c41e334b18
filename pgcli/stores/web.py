"""Reads files from web servers and the Hugging Face Hub."""

from __future__ import annotations

import ipaddress
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from math import inf
from typing import Any, BinaryIO

import httpcore2
import httpx2

from pgcli.records import Fault
from pgcli.stores.folders import Entry
from pgcli.stores.urls import (
    DENIED,
    MISSING,
    TOO_SLOW,
    UNKNOWN_HOST,
    UNKNOWN_SCHEME,
    Deadline,
    RemoteError,
    TransientError,
    check_url,
    failed,
    is_web,
    too_large,
)

MAX_RETRIES = 3
#: The pause before the first retry; each is twice as long as the previous one.
FIRST_PAUSE_SECONDS = 1.0
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
        raise TransientError(TOO_SLOW) from error
    except httpcore2.ConnectError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message.rstrip(".")
            fault = failed(f"the server's certificate is invalid ({why})")
            raise RemoteError(fault) from error
        why = getattr(cause, "strerror", None) or type(cause).__name__
        raise TransientError(failed(f"no connection ({why})")) from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        fault = Fault("io_error", "The server's response is truncated or not valid HTTP.")
        raise TransientError(fault) from error
    except httpx2.InvalidURL as error:
        raise RemoteError(Fault("io_error", "The URL is not valid.")) from error


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
        """Write the file at a URL; each `bytes_per_second` bytes extend the deadline by a second.

        A failed transfer starts again from the beginning, at most MAX_RETRIES times. Raises
        RemoteError, also for a file larger than the `limit`, and OSError for writing.
        """
        for retry in range(MAX_RETRIES + 1):
            file.seek(0)
            file.truncate()
            try:
                with http_errors(), self._get(url, deadline) as (response, headers):
                    if int(headers.get("Content-Length", 0)) > limit:
                        raise RemoteError(too_large(limit))
                    for chunk in response.iter_stream():
                        if file.tell() + len(chunk) > limit:
                            raise RemoteError(too_large(limit))
                        file.write(chunk)
                        deadline.extend(len(chunk) / bytes_per_second)
                    return
            except TransientError as error:
                # jitter, so that requests that failed together are not repeated together
                pause = FIRST_PAUSE_SECONDS * 2**retry * random.uniform(1, 1.5)
                pause = max(pause, error.retry_after)
                if retry == MAX_RETRIES or time.monotonic() + pause > deadline.end:
                    raise
                deadline.pause(pause)

    @contextmanager
    def _get(
        self, url: str, deadline: Deadline
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
                headers=httpx2.Headers({"Host": target.netloc.decode(), **HEADERS}).raw,
                extensions={"timeout": timeouts},
            ) as response:
                received = httpx2.Headers(response.headers)
                if response.status not in REDIRECTS or "Location" not in received:
                    check_response(response.status, received)
                    yield response, received
                    return
            moved = target.join(received["Location"])
            if not is_web(str(moved)):
                raise RemoteError(UNKNOWN_SCHEME)
            if (target.scheme, moved.scheme) == ("https", "http"):
                raise RemoteError(Fault("url_blocked", "The URL redirects from https to http."))
            url = str(moved)
            check_url(url)
        raise RemoteError(Fault("io_error", "The URL redirects too many times."))


def check_response(status: int, headers: httpx2.Headers) -> None:
    """Raise RemoteError for a response without the file."""
    if status in (404, 410):
        raise RemoteError(MISSING)
    if status in (401, 403, 407):
        raise RemoteError(DENIED)
    fault = TOO_SLOW if status == 408 else failed(f"the server answered {status}")
    if status in BUSY:
        raise TransientError(fault, retry_after(headers.get("Retry-After", "")))
    if status != 200:
        raise RemoteError(fault)
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        message = "The server compressed its response without being asked to."
        raise RemoteError(Fault("io_error", message))


def retry_after(text: str) -> float:
    """The seconds of a Retry-After header; 0 for a date."""
    try:
        return float(text)
    except ValueError:
        return 0.0


CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0

#: IANA's special-purpose networks, including the globally reachable ones, and Azure's metadata
#: service. Python's own list has changed from version to version.
_SPECIAL_V4 = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12
    192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16
    192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
"""
_SPECIAL_V6 = "2001::/23 2001:db8::/32 2620:4f:8000::/48 3fff::/20"
_SPECIAL = tuple(map(ipaddress.ip_network, (*_SPECIAL_V4.split(), *_SPECIAL_V6.split())))
#: All networks of Internet hosts; their exceptions, and those with embedded IPv4 addresses.
_ASSIGNED_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Network(httpcore2.SyncBackend):
    """Resolves a host's name, and connects to one of its checked addresses."""

    def __init__(self, *, allow_private_hosts: bool):
        self._allow_private = allow_private_hosts

    def connect_tcp(
        self, host: str, port: int, timeout: Any = None, *unused: Any, **options: Any
    ) -> Stream:
        """A connection to the host. Raises RemoteError if any of its addresses is private."""
        *first, last = checked_addresses(host, port, allow_private=self._allow_private)
        for address in first:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return self._connect(address, port, timeout)
        return self._connect(last, port, timeout)

    def _connect(self, address: str, port: int, deadline: Any) -> Stream:
        return Stream(super().connect_tcp(address, port, deadline.remaining(CONNECT_SECONDS)))


class Stream(httpcore2.NetworkStream):
    """A connection whose timeouts are all the deadline of its request."""

    def __init__(self, stream: httpcore2.NetworkStream):
        self._stream = stream
        self.close = stream.close  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        return self._stream.read(max_bytes, timeout.remaining(READ_SECONDS))

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        self._stream.write(buffer, timeout.remaining(READ_SECONDS))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: Any = None
    ) -> Stream:
        seconds = timeout.remaining(CONNECT_SECONDS)
        return Stream(self._stream.start_tls(ssl_context, server_hostname, seconds))


def checked_addresses(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The IP addresses of a host. Raises RemoteError if any of them is private.

    Connections use these addresses: the name may resolve to others a moment later.
    """
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise TransientError(UNKNOWN_HOST) from error
        raise RemoteError(UNKNOWN_HOST) from error
    except (OSError, ValueError) as error:
        raise RemoteError(failed("the server's host name is invalid")) from error
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in resolved))
    if not addresses or not (allow_private or all(map(is_public, addresses))):
        message = "The URL leads to a private host; --allow-private-hosts allows it."
        raise RemoteError(Fault("url_blocked", message))
    return addresses


def is_public(text: str) -> bool:
    """Whether an IP address is public, and so is the IPv4 address embedded in it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
        if address not in _ASSIGNED_V6 or address.scope_id:
            return False
    return address.is_global and not any(address in network for network in _SPECIAL)


CHUNK_BYTES = 4 * 2**20
FAULTS = {401: DENIED, 403: DENIED, 404: MISSING}


class HubFiles:
    """Files at `hf://` URLs, by the file system of `huggingface_hub`; see `ObjectFiles`."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except RemoteError:
            raise
        except FileNotFoundError as error:
            raise RemoteError(MISSING) from error
        except (httpx2.HTTPError, OSError, ValueError) as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in FAULTS:
                raise RemoteError(FAULTS[status]) from error
            kind = TransientError if isinstance(error, httpx2.HTTPError) else RemoteError
            reason = f"the server answered {status}" if status else type(error).__name__
            raise kind(failed(reason)) from error

    def kind(self, url: str) -> str:
        try:
            return "folder" if self._files.info(url)["type"] == "directory" else "file"
        except FileNotFoundError:
            return ""

    def pages(self, url: str) -> Callable[[], list[Entry]]:
        start = len(self._files.resolve_path(url).unresolve()) + 1
        files = self._files.find(url, detail=True)  # a single page: the Hub gives no times
        sizes = {path[start:]: int(files[path]["size"] or 0) for path in sorted(files)}
        return partial(next, iter([[Entry(name, size, 0.0) for name, size in sizes.items()]]), [])

    def download(self, url: str, file: BinaryIO, limit: int, deadline: Deadline) -> None:
        with self._files.open(url, "rb", block_size=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                if file.tell() + len(chunk) > limit:
                    raise RemoteError(too_large(limit))
                deadline.remaining()
                file.write(chunk)

    def open(self, url: str) -> tuple[int, Callable[[int, int], bytes]]:
        file, lock = self._files.open(url, "rb"), threading.Lock()

        def read(start: int, stop: int) -> bytes:
            with lock:  # an abandoned request of another thread may still read
                file.seek(start)
                return bytes(file.read(stop - start))

        return file.size, read

    @cached_property
    def _files(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem()
