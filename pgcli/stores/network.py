"""Connections to public machines only; every wait ends at the request's deadline."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from contextlib import suppress
from typing import Any

import httpcore2

from pgcli.stores.errors import PRIVATE, UNKNOWN_HOST, RemoteError, TransientError, failed

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


class Unreachable(TransientError):
    """No connection to the server: no name service, no route, or nobody answers there."""


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
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):  # the next may work
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
            raise Unreachable(UNKNOWN_HOST) from error
        raise RemoteError(UNKNOWN_HOST) from error
    except (OSError, ValueError) as error:
        raise RemoteError(failed("the server's host name is invalid")) from error
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in resolved))
    if not addresses or not (allow_private or all(map(is_public, addresses))):
        raise RemoteError(PRIVATE)
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
