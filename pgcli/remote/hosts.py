"""Which machines may be asked: names resolved once, and every address they have looked at."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, NamedTuple

from pgcli.remote.errors import PRIVATE, RemoteError, TransientError, failed

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: An old way to write an IPv4 address, and a network's own way to reach one.
_INWARD = (ipaddress.ip_network("::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_INNER = ("ipv4_mapped", "sixtofour")
#: Public by its number, and a door to a cloud's own machinery all the same.
_CLOUDS_OWN = frozenset({ipaddress.ip_address("168.63.129.16")})


class Peer(NamedTuple):
    """An address of a host that may be dialled, as the socket module wants it."""

    family: int
    place: Any


def peers(host: str, port: int, *, allow_private: bool) -> list[Peer]:
    """The addresses that a name has now. Raises `RemoteError`, also if a single one is private.

    What is dialled is one of these and not the name, which may stand for another a moment later.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as problem:
        fault = failed("the server's name is not known")
        if problem.errno == socket.EAI_AGAIN:
            raise TransientError(fault) from problem
        raise RemoteError(fault) from problem
    except (OSError, ValueError) as problem:  # names that no host has
        raise RemoteError(failed("the server's name is none")) from problem
    known = [Peer(family, place) for family, _, _, _, place in found]
    if not known or not (allow_private or all(is_public(str(peer.place[0])) for peer in known)):
        raise RemoteError(PRIVATE)
    return known


def is_public(text: str) -> bool:
    """Whether anybody on the internet is meant: no own network, no machine's own, none hidden in
    an IPv6 address that leads to an IPv4 one.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = [one for name in _INNER if (one := getattr(address, name)) is not None]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if inner:
            return all(is_public(str(one)) for one in inner)
        is_inward = any(address in network for network in _INWARD)
        if is_inward or address.is_site_local or address.scope_id:
            return False
    return address.is_global and not address.is_multicast and address not in _CLOUDS_OWN
