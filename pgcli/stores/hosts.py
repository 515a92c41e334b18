"""Resolves host names, and checks that all their addresses are public."""

from __future__ import annotations

import ipaddress
import socket
import threading
from functools import partial

from pgcli.stores.deadline import Deadline, run_abandonable
from pgcli.stores.errors import PRIVATE, RemoteError, TransientError, failed

RESOLVE_SECONDS = 10.0

#: What IANA lists as special, also what is formally global there, and the metadata service of
#: Azure. Python's own list has changed from version to version.
_SPECIAL_V4 = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12
    192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16
    192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
"""
_SPECIAL_V6 = "2001::/23 2001:db8::/32 2620:4f:8000::/48 3fff::/20"
_SPECIAL = tuple(map(ipaddress.ip_network, (*_SPECIAL_V4.split(), *_SPECIAL_V6.split())))
#: All that is assigned to hosts on the Internet, and where other networks hold IPv4 addresses.
_ASSIGNED_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def resolve(host: str, port: int, deadline: Deadline, *, allow_private: bool) -> list[str]:
    """The vetted addresses of a host, within the deadline. Raises RemoteError, TimeoutError.

    `getaddrinfo` has no timeout: it is abandoned if it takes too long.
    """
    limit = Deadline(RESOLVE_SECONDS, threading.Event())
    call = partial(vetted_addresses, host, port, allow_private=allow_private)
    return run_abandonable(call, limit, deadline)


def vetted_addresses(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The IP addresses of a host. Raises RemoteError, also if a single one is not public.

    Connections go to these addresses: the name may resolve to others a moment later.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        fault = failed("the name of the server is not known")
        if error.errno == socket.EAI_AGAIN:
            raise TransientError(fault) from error
        raise RemoteError(fault) from error
    except (OSError, ValueError) as error:
        raise RemoteError(failed("the name of the server is not valid")) from error
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
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
