"""Decodes images ahead of the model, in separate processes, in order and in bounded memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Generic, TypeVar

from pgcli.errors import NoUsableDevice
from pgcli.images.decode import silence_decoders
from pgcli.images.limits import Budget
from pgcli.images.messages import Decoder, most_bytes, without_data
from pgcli.images.worker import Job, Worker, start_errors, with_fault
from pgcli.records import DecodedImage, Item

if TYPE_CHECKING:
    from pgcli.stores import Reader

__all__ = ["DEFAULT_WORKERS", "MIN_ITEMS_FOR_WORKERS", "Decoder", "decode_ahead"]

DEFAULT_WORKERS = 4
MIN_ITEMS_FOR_WORKERS = 32  # for fewer, processes take longer to start than they save
#: The assumed size of decoded pixels until some have arrived: the largest model's 896 x 896.
LARGEST_PIXEL_BYTES = 896 * 896 * 3
#: The memory that all processes share for large images: one of 89 million pixels in a pool of four.
DECODING_BYTES = 2**30
DECODING_BYTES_PER_WORKER = 2**28
#: Items that are read ahead of decoding in this process; each may hold an image's bytes.
MAX_ITEMS_AHEAD = 8
#: Images that are decoded ahead in other processes, a few batches, however small their pixels are.
MAX_IMAGES_AHEAD = 256
#: With `pauses`, None is yielded after this long without an image.
POLL_SECONDS = 0.2

Given = TypeVar("Given")
Entry = TypeVar("Entry")


def decode_ahead(
    items: Iterable[Item | DecodedImage],
    decoder: Decoder,
    *,
    workers: int | None,
    total: int | None,
    max_bytes: int = 64 * 2**20,
    should_stop: Callable[[], bool] = lambda: False,
    reader: Reader | None = None,
    pauses: bool = False,
    default_workers: int | None = None,
) -> Generator[DecodedImage | None, None, None]:
    """Decoded items in order, decoded ahead by `workers` processes; None is `default_workers`.

    The processes start, and decode, before the first image is requested. Without workers, or if
    their number is None and `total` is small, each item is decoded in this process on request;
    no time limit applies there. Already decoded images are passed through in order. The bytes of
    an item are released once it is decoded. An image that crashes its process twice, or takes more
    than `worker.PROCESSOR_SECONDS`, becomes a fault. Images ahead take at most `max_bytes`, and
    processes that decode large images wait for each other. Closing the iterator ends the
    processes; once `should_stop()` is true, it ends without waiting. The `reader` fetches items at
    URLs, several at a time. With `pauses`, None is yielded while no image arrives. Raises
    NoUsableDevice if a process cannot start.
    """
    are_few = workers is None and total is not None and total < MIN_ITEMS_FOR_WORKERS
    if workers == 0 or are_few:
        return _decode_here(items, decoder, reader, should_stop, pauses=pauses)
    count = workers or min(default_workers or DEFAULT_WORKERS, os.cpu_count() or 1)
    count = count if total is None else max(1, min(count, total))
    pool = _Pool(decoder, count, max_bytes, reader)
    images = pool.images(items, should_stop, pauses=pauses)
    next(images)
    return images


def _decode_here(
    items: Iterable[Item | DecodedImage],
    decoder: Decoder,
    reader: Reader | None,
    should_stop: Callable[[], bool],
    *,
    pauses: bool,
) -> Generator[DecodedImage | None, None, None]:
    """Items decoded in this process, one at a time. With pauses, a thread reads them."""
    silence_decoders()
    room = Budget(MAX_ITEMS_AHEAD)

    def admit(item: Item | DecodedImage) -> Item | DecodedImage | None:
        return item if room.take(1) else None

    feed = _Feed[Item | DecodedImage](items, admit) if pauses else None
    try:
        for item in items if feed is None else feed.entries(should_stop):
            if item is None:
                yield None
                continue
            if feed is not None:
                room.give(1)
            if isinstance(item, DecodedImage):
                yield item
                continue
            with _read(item, reader) as (readable, took_ms):
                image = decoder(readable)
            yield replace(image, item=without_data(image.item), load_ms=image.load_ms + took_ms)
    finally:
        room.close()


@contextmanager
def _read(item: Item, reader: Reader | None) -> Iterator[tuple[Item, float]]:
    """The item with its bytes, held for the duration of the block, and the milliseconds to read."""
    if reader is None or item.fault is not None:
        yield item, 0.0
        return
    began = perf_counter()
    with reader.fetched(item) as result:
        yield result, (perf_counter() - began) * 1000 * (result is not item)


class _Feed(Generic[Entry]):
    """A thread that reads items, which may arrive slowly, and passes each to `admit`.

    `admit` returns an entry, may wait for room first, and ends the thread with None.
    """

    def __init__(self, items: Iterable[Given], admit: Callable[[Given], Entry | None]):
        self._queue: SimpleQueue[Entry | Exception | None] = SimpleQueue()
        with start_errors():
            threading.Thread(target=self._run, args=(items, admit), daemon=True).start()

    def entries(self, should_stop: Callable[[], bool]) -> Iterator[Entry | None]:
        """The entries in order, None while nothing arrives, then the items' exception if any.

        Ends once `should_stop()` is true.
        """
        while not should_stop():
            try:
                entry = self._queue.get(timeout=POLL_SECONDS)
            except Empty:
                yield None
                continue
            if isinstance(entry, Exception):
                raise entry
            if entry is None:
                return
            yield entry

    def _run(self, items: Iterable[Given], admit: Callable[[Given], Entry | None]) -> None:
        end: Exception | None = None
        try:
            for item in items:
                entry = admit(item)
                if entry is None:
                    return
                self._queue.put(entry)
        except Exception as problem:  # noqa: BLE001 - raised again where the entries are taken
            end = problem
        self._queue.put(end)


class _Pool:
    """Decoding processes with a thread each, a thread that reads items, and threads that fetch.

    The bytes of images waiting in the pool stay below `max_bytes`, except for a single image.
    """

    def __init__(self, decoder: Decoder, count: int, max_bytes: int, reader: Reader | None):
        self._memory = Budget(max(DECODING_BYTES, count * DECODING_BYTES_PER_WORKER))
        self._workers: list[Worker] = []
        try:
            for _ in range(count):
                self._workers.append(Worker(decoder, self._memory))
        except NoUsableDevice:
            self._close_workers()
            raise
        self._threads: list[threading.Thread] = []
        self._reader = copy(reader)  # the copy closes with the pool, the original stays open
        self._fetching = ThreadPoolExecutor(reader.fetch_threads) if reader else None
        self._fetched = Budget(count + (reader.fetch_threads if reader else 0))
        self._ahead, self._least = Budget(max_bytes), max_bytes // MAX_IMAGES_AHEAD
        self._usual_bytes = LARGEST_PIXEL_BYTES
        lock = threading.Lock()
        # the jobs that no process has yet, and the job whose image is requested
        self._has_waiting, self._is_done = threading.Condition(lock), threading.Condition(lock)
        self._waiting: deque[Job] = deque()
        self._requested: Job | None = None
        self._is_closed = False
        self._problem: Exception | None = None

    def images(
        self,
        items: Iterable[Item | DecodedImage],
        should_stop: Callable[[], bool],
        *,
        pauses: bool,
    ) -> Generator[DecodedImage | None, None, None]:
        """None once items are being decoded; after that the images, in order."""
        try:
            with start_errors():
                for worker in self._workers:
                    thread = threading.Thread(target=self._decode, args=(worker,), daemon=True)
                    thread.start()
                    self._threads.append(thread)
            feed = _Feed(items, self._submit)
            yield None
            for job in feed.entries(should_stop):
                while not (job is None or self._wait(job) or should_stop()):
                    if pauses:
                        yield None
                if job is not None and job.image is not None:
                    self._ahead.give(job.reserved)
                    yield job.image
                elif pauses:
                    yield None
        finally:
            self._close()

    def _wait(self, job: Job) -> bool:
        """Whether the job has its image, after POLL_SECONDS at most."""
        if job.image is None:
            with self._is_done:
                self._requested = job
                self._is_done.wait_for(lambda: job.image or self._problem, POLL_SECONDS)
            if job.image is None and self._problem is not None:
                raise self._problem
        return job.image is not None

    def _submit(self, item: Item | DecodedImage) -> Job | None:
        """The job of the next item, once there is room; None once the pool is closed."""
        if isinstance(item, DecodedImage):
            job = Job(item.item, self._bytes_of(item), image=item)
        else:
            job = Job(item, max(self._least, len(item.data or b"") + self._usual_bytes))
        if not self._ahead.take(job.reserved):
            return None
        if job.image is not None:
            return job
        if self._fetching is None:
            self._queue(job)
        else:
            with start_errors():
                self._fetching.submit(self._fetch, job)
        return job

    def _fetch(self, job: Job) -> None:
        """Fetch the bytes of an item at a URL, and hold them until they are decoded."""
        with self._problems():
            if self._fetched.take(1):
                job.held = ExitStack()
                job.item, job.fetch_ms = job.held.enter_context(_read(job.item, self._reader))
                self._queue(job)

    def _queue(self, job: Job) -> None:
        if job.item.fault is not None:
            self._finish(job, with_fault(job.item, job.item.fault))
            return
        job.size = most_bytes(job.item)
        with self._has_waiting:
            if not self._is_closed:
                self._waiting.append(job)
                self._has_waiting.notify()
                return
        _release([job])

    def _decode(self, worker: Worker) -> None:
        """Decode waiting jobs in a process until the pool is closed."""
        with self._problems():
            while not self._is_closed:
                if worker.wants_jobs:
                    with self._has_waiting:
                        while not (worker.jobs or self._waiting or self._is_closed):
                            self._has_waiting.wait()
                        worker.take(self._waiting, 1 + len(self._waiting) // len(self._workers))
                if worker.jobs:
                    self._finish(*worker.decode())
        _release(worker.jobs)

    def _finish(self, job: Job, image: DecodedImage) -> None:
        if job.held is not None:
            job.held.close()
            self._fetched.give(1)
            image = replace(image, load_ms=image.load_ms + job.fetch_ms)
        job.item = image.item  # without its bytes
        self._usual_bytes = _pixel_bytes(image) or self._usual_bytes
        if surplus := job.reserved - self._bytes_of(image):
            job.reserved -= surplus
            self._ahead.give(surplus)
        with self._is_done:
            job.image = image
            if job is self._requested:
                self._is_done.notify()

    def _bytes_of(self, image: DecodedImage) -> int:
        """The memory that a decoded image takes, at least that of MAX_IMAGES_AHEAD images."""
        return max(self._least, _pixel_bytes(image))

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """A block in a thread, whose exception is raised where the images are taken."""
        try:
            yield
        except Exception as problem:  # noqa: BLE001 - raised again where the images are taken
            with self._is_done:
                self._problem = self._problem or problem
                self._is_done.notify()

    def _close(self) -> None:
        for budget in (self._ahead, self._fetched, self._memory):
            budget.close()
        with self._has_waiting:
            self._is_closed = True
            self._has_waiting.notify_all()
        if self._reader is not None:
            self._reader.stop()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join()
        _release(self._waiting)
        if self._fetching is not None:
            self._fetching.shutdown(wait=True, cancel_futures=True)
        self._close_workers()

    def _close_workers(self) -> None:
        for worker in self._workers:
            worker.close()


def _release(jobs: Iterable[Job]) -> None:
    """Release the fetched bytes of jobs: other threads that fetch may wait for them."""
    for job in jobs:
        if job.held is not None:
            job.held.close()


def _pixel_bytes(image: DecodedImage) -> int:
    return 0 if image.pixels is None else image.pixels.nbytes
