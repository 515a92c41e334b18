"""Resolves host names, and checks that all their addresses are public."""

from __future__ import annotations

import ipaddress
import socket
import threading
from functools import partial

from pgcli.remote.abandonable import run_abandonable
from pgcli.remote.deadline import RESOLVE_SECONDS, Deadline
from pgcli.remote.errors import PRIVATE, RemoteError, TransientError, failed

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Deprecated IPv4-compatible addresses, and the local prefix of NAT64.
_NEVER_PUBLIC = (ipaddress.ip_network("::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_EMBEDDED = ("ipv4_mapped", "sixtofour")
#: The metadata service of Azure, at an address that is formally public.
_METADATA_SERVICES = frozenset({ipaddress.ip_address("168.63.129.16")})


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
    """Whether an IP address is public, and so is every IPv4 address embedded in it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        embedded = [one for name in _EMBEDDED if (one := getattr(address, name)) is not None]
        if address in _NAT64:
            embedded.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if embedded:
            return all(is_public(str(one)) for one in embedded)
        is_internal = any(address in network for network in _NEVER_PUBLIC)
        if is_internal or address.is_site_local or address.scope_id:
            return False
    return address.is_global and not address.is_multicast and address not in _METADATA_SERVICES
