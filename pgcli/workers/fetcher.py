"""Fetches the bytes of images that are not on this machine, before they are decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import NamedTuple, Protocol

from pgcli.records import Item


class Fetcher(Protocol):
    """Fetches the bytes of items from elsewhere, of `fetch_threads` at once."""

    fetch_threads: int

    def fetched(self, item: Item) -> AbstractContextManager[Item]:
        """The item with its bytes, or with a fault; other items are unchanged."""

    def stop(self) -> None:
        """Make all fetches fail, also those under way."""


class FetchedItem(NamedTuple):
    """An item that can be decoded, and how long it took to fetch."""

    item: Item
    took_ms: float = 0.0


@contextmanager
def fetched(item: Item, fetcher: Fetcher | None) -> Iterator[FetchedItem]:
    """The item with its bytes, which are held for the duration of the block."""
    if fetcher is None or item.fault is not None:
        yield FetchedItem(item)
        return
    began = perf_counter()
    with fetcher.fetched(item) as result:
        yield FetchedItem(result, (perf_counter() - began) * 1000 * (result is not item))
