"""Decodes items in several worker processes at once and yields them in order, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from pgcli.errors import NoUsableDevice
from pgcli.records import PAUSE, DecodedImage, Item
from pgcli.workers.decoder import Decoder
from pgcli.workers.fetcher import Fetcher, fetched
from pgcli.workers.start_errors import thread_errors
from pgcli.workers.worker_handle import Worker

#: What decoded pixels are assumed to take until some have arrived: the largest model's 896 x 896.
LARGEST_PIXEL_BYTES = 896 * 896 * 3
#: The items pause, as those of a pipe may, where none arrives for so long.
POLL_SECONDS = 0.2


@dataclass(eq=False)
class PendingImage:
    """A decoded image to come, and the bytes reserved for it: once it is there, its own."""

    reserved_bytes: int
    future: Future[DecodedImage] = field(init=False)


#: An image, the items' exception, or their end.
Pending = PendingImage | Exception | None


def start_workers(decoder: Decoder, count: int) -> list[Worker]:
    """So many workers. Raises NoUsableDevice if one cannot start; then none is left."""
    workers: list[Worker] = []
    try:
        for _ in range(count):
            workers.append(Worker(decoder))
    except NoUsableDevice:
        for worker in workers:
            worker.close()
        raise
    return workers


class Prefetcher:
    """Worker processes with a thread each, one thread that reads the items, and some that fetch.

    Items may arrive slowly, as from a pipe, so a thread of its own waits for them. The bytes
    reserved by images that are not yet taken stay below `max_bytes`, except for a single image.
    """

    def __init__(self, decoder: Decoder, count: int, max_bytes: int, fetcher: Fetcher | None):
        self._workers = start_workers(decoder, count)
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._fetcher = fetcher
        fetch_threads = fetcher.fetch_threads if fetcher else 0
        self._fetching = threading.Semaphore(fetch_threads or count)
        self._task = self._fetch_and_decode if fetcher else self._decode
        self._pool = ThreadPoolExecutor(count + fetch_threads, "pgcli-decode")
        self._pending: SimpleQueue[Pending] = SimpleQueue()
        self._capacity = threading.Condition()
        self._max_bytes = max_bytes
        self._reserved_bytes = 0
        self._pixel_bytes = LARGEST_PIXEL_BYTES
        self._stopped = False

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        with self._capacity:
            self._stopped = True
            self._capacity.notify_all()
        if self._fetcher is not None:
            self._fetcher.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()
        self._pool.shutdown(wait=True)
        for worker in self._workers:
            worker.close()

    def feed(self, items: Iterable[Item]) -> None:
        """Submit items for decoding as they arrive and as memory allows, until closed."""
        end: Exception | None = None
        try:
            for item in items:
                pending = PendingImage(self._reserve(len(item.data or b"")))
                if self._stopped:
                    return
                with thread_errors():
                    pending.future = self._pool.submit(self._run, item, pending)
                self._pending.put(pending)
        except Exception as problem:  # noqa: BLE001 - raised again where the images are taken
            end = problem
        self._pending.put(end)

    def images(self, should_stop: Callable[[], bool]) -> Iterator[DecodedImage]:
        """Decoded images in the order of the items, then the items' exception if they raised one.

        Yields PAUSE while no item arrives. Ends early once `should_stop()` is true.
        """
        while not should_stop():
            try:
                pending = self._pending.get(timeout=POLL_SECONDS)
            except Empty:
                yield PAUSE
                continue
            if not isinstance(pending, PendingImage):
                if pending is not None:
                    raise pending
                return
            image = pending.future.result()
            with self._capacity:
                self._reserved_bytes -= pending.reserved_bytes
                self._capacity.notify()
            yield image

    def _reserve(self, data_bytes: int) -> int:
        """Wait for memory for an item's data and pixels, and return how much is reserved."""
        with self._capacity:
            needed = data_bytes + self._pixel_bytes
            self._capacity.wait_for(lambda: self._stopped or self._fits(needed))
            self._reserved_bytes += needed
            return needed

    def _fits(self, needed: int) -> bool:
        return not self._reserved_bytes or self._reserved_bytes + needed <= self._max_bytes

    def _run(self, item: Item, pending: PendingImage) -> DecodedImage:
        image = self._task(item)
        taken = 0 if image.pixels is None else image.pixels.nbytes
        with self._capacity:
            self._reserved_bytes += taken - pending.reserved_bytes
            pending.reserved_bytes = taken
            self._pixel_bytes = taken or self._pixel_bytes
            self._capacity.notify()
        return image

    def _fetch_and_decode(self, item: Item) -> DecodedImage:
        with ExitStack() as stack:
            with self._fetching:
                whole = stack.enter_context(fetched(item, self._fetcher))
            image = self._decode(whole.item)
        return replace(image, load_ms=image.load_ms + whole.took_ms)

    def _decode(self, item: Item) -> DecodedImage:
        worker = self._idle.get()
        try:
            return worker.decode(item)
        finally:
            self._idle.put(worker)
