"""Reads items that arrive slowly in a thread, so that a pause is noticed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, Full, Queue

from pgcli.records import Item
from pgcli.workers.prefetcher import POLL_SECONDS

#: Items that are read ahead; each may hold the bytes of an image.
MAX_AHEAD = 8


def arrivals(items: Iterable[Item], should_stop: Callable[[], bool]) -> Iterator[Item | None]:
    """The items as they arrive, None while none does. Ends early once `should_stop()` is true."""
    queue: Queue[Item | Exception | None] = Queue(MAX_AHEAD)
    closed = threading.Event()

    def put(item: Item | Exception | None) -> None:
        while not closed.is_set():
            try:
                queue.put(item, timeout=POLL_SECONDS)
                return
            except Full:
                continue

    def feed() -> None:
        end: Exception | None = None
        try:
            for item in items:
                put(item)
                if closed.is_set():
                    return
        except Exception as problem:  # noqa: BLE001 - raised again where the items are taken
            end = problem
        put(end)

    threading.Thread(target=feed, daemon=True).start()
    try:
        while not should_stop():
            try:
                item = queue.get(timeout=POLL_SECONDS)
            except Empty:
                yield None
                continue
            if isinstance(item, Exception):
                raise item
            if item is None:
                return
            yield item
    finally:
        closed.set()
