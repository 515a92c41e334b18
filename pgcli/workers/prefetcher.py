"""Pictures under way: looked at by several workers at once, handed out in order, few at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue

from pgcli.records import DecodedImage, Item
from pgcli.workers.fetcher import FETCHES, Fetcher, fetched
from pgcli.workers.process import Look
from pgcli.workers.worker import Worker

#: What a decoded square is taken to need until one was seen: 896 pixels a side, the largest model.
LARGEST_SQUARE_BYTES = 896 * 896 * 3
#: So often it is looked whether a stream that brings nothing, as a pipe may, is still waited for.
SECONDS_BETWEEN_LOOKS = 0.2


class Prefetcher:
    """Pictures under way: a thread for each worker, and one that takes items as they come.

    Items may come slowly (a pipe), so they are waited for apart from the pictures; the bytes
    claimed by pictures not yet taken stay below `ahead_bytes`, but for a single one.
    """

    def __init__(self, look: Look, count: int, ahead_bytes: int, fetcher: Fetcher | None = None):
        self._workers = [Worker(look) for _ in range(count)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._fetcher = fetcher
        self._pool = ThreadPoolExecutor(count + (FETCHES if fetcher else 0), "pgcli-look")
        self._coming: SimpleQueue[tuple[Future[DecodedImage], int] | Exception | None] = (
            SimpleQueue()
        )
        self._room = threading.Condition()
        self._ahead_bytes = ahead_bytes
        self._claimed_bytes = 0
        self._square_bytes = LARGEST_SQUARE_BYTES
        self._stopped = False

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        with self._room:
            self._stopped = True
            self._room.notify_all()
        if self._fetcher is not None:
            self._fetcher.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()
        self._pool.shutdown(wait=True)

    def feed(self, items: Iterable[Item]) -> None:
        """Hand items to the workers as they come and as there is room, until stopped."""
        end: Exception | None = None
        try:
            for item in items:
                claim = self._claimed(len(item.data or b""))
                if self._stopped:
                    return
                self._coming.put((self._pool.submit(self._looked_at, item), claim))
        except Exception as problem:  # noqa: BLE001 - raised where the pictures are taken
            end = problem
        self._coming.put(end)

    def pictures(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[DecodedImage]:
        """The pictures in the items' order; what the items raised, after those before it.

        Once `stopped`, those that are not there yet are not waited for.
        """
        while isinstance(coming := self._next(stopped), tuple):
            future, claim = coming
            picture = future.result()
            with self._room:
                self._claimed_bytes -= claim
                if picture.pixels is not None:
                    self._square_bytes = picture.pixels.nbytes
                self._room.notify()
            yield picture
        if coming is not None:
            raise coming

    def _next(
        self, stopped: Callable[[], bool]
    ) -> tuple[Future[DecodedImage], int] | Exception | None:
        """What comes next, None at the end."""
        while not stopped():
            try:
                return self._coming.get(timeout=SECONDS_BETWEEN_LOOKS)
            except Empty:
                continue
        return None

    def _claimed(self, data_bytes: int) -> int:
        with self._room:
            claim = data_bytes + self._square_bytes
            self._room.wait_for(lambda: self._stopped or self._has_room(claim))
            self._claimed_bytes += claim
            return claim

    def _has_room(self, claim: int) -> bool:
        return not self._claimed_bytes or self._claimed_bytes + claim <= self._ahead_bytes

    def _looked_at(self, item: Item) -> DecodedImage:
        with fetched(item, self._fetcher) as whole:
            worker = self._idle.get()
            try:
                picture = worker.look(whole.item)
            finally:
                self._idle.put(worker)
        return replace(picture, load_ms=picture.load_ms + whole.took_ms)
