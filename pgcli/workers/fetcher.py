"""Pictures whose bytes are elsewhere, fetched before they are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import NamedTuple, Protocol

from pgcli.records import Item

#: Pictures that are fetched at once. They wait for servers, and take no core.
FETCHES = 16


class Fetcher(Protocol):
    """Brings the bytes of pictures, from wherever they are."""

    def fetched(self, item: Item) -> AbstractContextManager[Item]:
        """The item with its bytes, or with what is wrong with it; others as they are."""

    def stop(self) -> None:
        """Give up what is under way."""


class FetchedItem(NamedTuple):
    """An item as it can be looked at, and how long that took."""

    item: Item
    took_ms: float = 0.0


@contextmanager
def fetched(item: Item, fetcher: Fetcher | None) -> Iterator[FetchedItem]:
    """The item with its bytes, for as long as it is looked at."""
    if fetcher is None or item.fault is not None:
        yield FetchedItem(item)
        return
    began = perf_counter()
    with fetcher.fetched(item) as whole:
        yield FetchedItem(whole, (perf_counter() - began) * 1000 * (whole is not item))
