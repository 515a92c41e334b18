"""A picture's bytes once more, from where they were when it was answered."""

from __future__ import annotations

from pgcli.images import Limits, Unreadable
from pgcli.images.files import checked, read
from pgcli.records import Item
from pgcli.remote import Unreachable, UrlReader
from pgcli.sources.paths import scheme


def read_original(item: Item, limits: Limits, reach: UrlReader | None) -> bytes:
    """The item's bytes, out of itself, a file or an address. Raises `Unreadable`."""
    if item.fault is not None:
        raise Unreadable(item.fault)
    if item.path is None:
        return checked(item.data, limits)
    if reach is None or scheme(item.path) is None:
        return read(item.path, limits)
    try:
        return checked(reach.read(item.path), limits)
    except Unreachable as problem:
        raise Unreadable(problem.fault) from problem
