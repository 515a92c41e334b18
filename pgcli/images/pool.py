"""Decodes images ahead of the model, in separate processes, in order and in bounded memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import replace
from math import prod
from queue import Empty, SimpleQueue
from tempfile import NamedTemporaryFile
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.images.child_process import process_errors
from pgcli.images.worker import (
    Decoder,
    Job,
    JobQueue,
    LocalWorker,
    Worker,
    start_errors,
    with_fault,
)
from pgcli.records import DecodedImage, Item

if TYPE_CHECKING:
    from pgcli.stores import Reader

__all__ = ["DEFAULT_WORKERS", "MIN_ITEMS_FOR_WORKERS", "Decoder", "decode_ahead"]

DEFAULT_WORKERS = 4
MIN_ITEMS_FOR_WORKERS = 32  # for fewer, processes take longer to start than they save
#: Images that are decoded ahead, a few batches, however small their pixels are.
MAX_IMAGES_AHEAD = 256
#: With `pauses`, None is yielded after this long without an image.
POLL_SECONDS = 0.2


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
    their number is None and `total` is small, a thread of this process decodes from the first
    request on; no time limit applies there. Already decoded images are passed through in order. The
    bytes of an item are released once it is decoded. An image that crashes its process twice, or
    takes more than `worker.PROCESSOR_SECONDS`, becomes a fault. Images ahead take at most
    `max_bytes`, and processes that decode large images wait for each other. Closing the iterator
    ends the processes; once `should_stop()` is true, it ends without waiting. The `reader` fetches
    items at URLs, several at a time. With `pauses`, None is yielded while no image arrives. Raises
    NoUsableDevice if a process cannot start.
    """
    are_few = workers is None and total is not None and total < MIN_ITEMS_FOR_WORKERS
    count = workers or min(default_workers or DEFAULT_WORKERS, os.cpu_count() or 1)
    count = count if total is None else max(1, min(count, total))
    pool = _Pool(decoder, 0 if workers == 0 or are_few else count, max_bytes, reader)
    images = pool.images(items, should_stop, pauses=pauses)
    if pool.has_processes:
        next(images)
    return images


class _Pool:
    """Decoding processes with a thread each, a thread that reads items, and threads that fetch.

    The bytes of images waiting in the pool stay below `max_bytes`, except for a single image.
    """

    def __init__(self, decoder: Decoder, count: int, max_bytes: int, reader: Reader | None):
        self._decoder, self._count = decoder, count
        self._files = ExitStack()
        self._workers: list[Worker] = []
        self._threads: list[threading.Thread] = []
        self._reader = copy(reader)  # the copy closes with the pool, the original stays open
        self._fetching = ThreadPoolExecutor(reader.fetch_threads) if reader else None
        self._fetched = Budget(count + (reader.fetch_threads if reader else 0))
        self._ahead = Budget(max_bytes)
        self._image_bytes = max(max_bytes // MAX_IMAGES_AHEAD, prod(decoder.shape))
        self._waiting: JobQueue = SimpleQueue()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._is_closed = False
        self._problem: Exception | None = None
        self._read_problem: Exception | None = None

    @property
    def has_processes(self) -> bool:
        """Whether images are decoded in processes, not in a thread of this one."""
        return self._count > 0

    def images(
        self,
        items: Iterable[Item | DecodedImage],
        should_stop: Callable[[], bool],
        *,
        pauses: bool,
    ) -> Generator[DecodedImage | None, None, None]:
        """The images in order; first, None once processes are decoding."""
        try:
            if self._count:
                with start_errors(), process_errors():
                    lock = NamedTemporaryFile()  # noqa: SIM115 - closed with the pool
                    self._files.callback(lock.close)
                for _ in range(self._count):
                    self._workers.append(Worker(self._decoder, lock.name))
            here = [] if self._workers else [LocalWorker(self._decoder)]
            for worker in (*self._workers, *here):
                thread = threading.Thread(target=self._decode, args=(worker,), daemon=True)
                thread.start()
                self._threads.append(thread)
            threading.Thread(target=self._read, args=(items,), daemon=True).start()
            if self.has_processes:
                yield None
            job: Job | None = None
            while not should_stop():
                try:
                    job = job or self._jobs.get(timeout=POLL_SECONDS)
                except Empty:
                    if pauses:
                        yield None
                    continue
                if job is None and self._read_problem is not None:
                    raise self._read_problem
                if job is None:
                    return
                if job.done.wait(POLL_SECONDS) and job.image is not None:
                    self._ahead.give(job.reserved)
                    yield job.image
                    job = None
                elif self._problem is not None:
                    raise self._problem
                elif pauses:
                    yield None
        finally:
            self._close()

    def _read(self, items: Iterable[Item | DecodedImage]) -> None:
        """Read the items, which may arrive slowly, as far ahead as there is room."""
        try:
            for item in items:
                if isinstance(item, DecodedImage):
                    job = Job(item.item, self._image_bytes)
                else:
                    job = Job(item, self._image_bytes + len(item.data or b""))
                if not self._ahead.take(job.reserved):
                    return
                self._jobs.put(job)
                if isinstance(item, DecodedImage):
                    self._finish(job, item)
                elif self._fetching is None:
                    self._queue(job)
                else:
                    self._fetching.submit(self._fetch, job)
        except Exception as problem:  # noqa: BLE001 - raised again where the images are taken
            self._read_problem = problem
        self._jobs.put(None)

    def _fetch(self, job: Job) -> None:
        """Fetch the bytes of an item at a URL, and hold them until they are decoded."""
        try:
            if self._reader is not None and self._fetched.take(1):
                began, job.held = perf_counter(), ExitStack()
                if job.item.fault is None:
                    item = job.held.enter_context(self._reader.fetched(job.item))
                    job.fetch_ms = (perf_counter() - began) * 1000 * (item is not job.item)
                    job.item = item
                self._queue(job)
        except Exception as problem:  # noqa: BLE001 - raised again where the images are taken
            self._problem = problem

    def _queue(self, job: Job) -> None:
        if job.item.fault is not None:
            self._finish(job, with_fault(job.item, job.item.fault))
            return
        self._waiting.put(job)
        if self._is_closed:
            self._release_waiting()

    def _decode(self, worker: Worker | LocalWorker) -> None:
        """Decode waiting jobs until the pool is closed."""
        try:
            while not self._is_closed and worker.take(self._waiting):
                self._finish(*worker.decode())
        except Exception as problem:  # noqa: BLE001 - raised again where the images are taken
            self._problem = self._problem or problem
        for job in worker.jobs:
            job.release()

    def _finish(self, job: Job, image: DecodedImage) -> None:
        if job.held is not None:
            job.release()
            self._fetched.give(1)
            image = replace(image, load_ms=image.load_ms + job.fetch_ms)
        job.item = image.item
        if job.reserved > self._image_bytes:
            self._ahead.give(job.reserved - self._image_bytes)
            job.reserved = self._image_bytes
        job.image = image
        job.done.set()

    def _close(self) -> None:
        self._is_closed = True
        self._ahead.close()
        self._fetched.close()
        self._waiting.put(None)
        if self._reader is not None:
            self._reader.stop()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join()
        self._release_waiting()
        if self._fetching is not None:
            self._fetching.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._files.close()

    def _release_waiting(self) -> None:
        """Release the bytes of waiting jobs: other threads that fetch may wait for them."""
        with suppress(Empty):
            while True:
                if job := self._waiting.get_nowait():
                    job.release()
        self._waiting.put(None)


class Budget:
    """A budget of bytes for several threads; a thread that needs more than all has them alone."""

    def __init__(self, size: int):
        self._size = size
        self._held = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, size: int) -> bool:
        """Wait until so many bytes are free, and take them. False once the budget is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or not self._held or self._held + size <= self._size
            )
            self._held += size
            return not self._closed

    def give(self, size: int) -> None:
        """Return so many bytes. A waiting thread wakes up once a sixteenth of all bytes is free."""
        with self._changed:
            self._held -= size
            if self._held <= self._size * 15 // 16:
                self._changed.notify_all()

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
