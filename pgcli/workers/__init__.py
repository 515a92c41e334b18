"""Decodes images ahead of the model, in worker processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pgcli.images.decoder_warnings import silence_decoders
from pgcli.records import PAUSE, DecodedImage, Item
from pgcli.workers.arrivals import arrivals
from pgcli.workers.decoder import Decoder
from pgcli.workers.fetcher import Fetcher, fetched
from pgcli.workers.prefetcher import Prefetcher
from pgcli.workers.start_errors import thread_errors

__all__ = ["DEFAULT_WORKERS", "MIN_ITEMS_FOR_WORKERS", "Decoder", "prefetch"]

DEFAULT_WORKERS = 4
MIN_ITEMS_FOR_WORKERS = 32  # for fewer, processes take longer to start than they save


def prefetch(
    items: Iterable[Item],
    decode: Decoder,
    *,
    workers: int | None,
    total: int | None,
    max_bytes: int = 64 * 2**20,
    should_stop: Callable[[], bool] = lambda: False,
    fetcher: Fetcher | None = None,
    pauses: bool = False,
    default_workers: int | None = None,
) -> Iterator[DecodedImage]:
    """Decoded items in order, decoded ahead by `workers` processes; None is `default_workers`.

    The processes start, and items are decoded, before the first image is asked for.
    Without workers, or if their number is None and `total` is small, each item is decoded in this
    process when it is asked for; no time limit applies there. The bytes of an item are released
    once it is decoded. An image that crashes its process twice, or takes more than
    `worker_main.PROCESSOR_SECONDS`, becomes a fault. Images ahead take at most `max_bytes`. Closing
    the iterator ends the processes; once `should_stop()` is true, it ends without waiting.
    `fetcher` downloads items at URLs, several at a time. With `pauses`, PAUSE is yielded while no
    item arrives. Raises NoUsableDevice if a process cannot start.
    """
    are_few = workers is None and total is not None and total < MIN_ITEMS_FOR_WORKERS
    if workers == 0 or are_few:
        arriving = arrivals(items, should_stop) if pauses else items
        return decode_in_process(arriving, decode, fetcher)
    count = workers or min(default_workers or DEFAULT_WORKERS, os.cpu_count() or 1)
    count = count if total is None else max(1, min(count, total))
    prefetcher = Prefetcher(decode, count, max_bytes, fetcher)
    images = decode_in_processes(items, prefetcher, should_stop, pauses=pauses)
    next(images)
    return images


def decode_in_processes(
    items: Iterable[Item],
    prefetcher: Prefetcher,
    should_stop: Callable[[], bool],
    *,
    pauses: bool,
) -> Iterator[DecodedImage]:
    """PAUSE once items are being decoded; then these, in order."""
    with prefetcher:
        with thread_errors():
            threading.Thread(target=prefetcher.feed, args=(items,), daemon=True).start()
        yield PAUSE
        yield from (one for one in prefetcher.images(should_stop) if pauses or one is not PAUSE)


def decode_in_process(
    items: Iterable[Item | None], decode: Decoder, fetcher: Fetcher | None
) -> Iterator[DecodedImage]:
    """Items decoded in this process, one at a time; PAUSE for None."""
    silence_decoders()
    for item in items:
        if item is None:
            yield PAUSE
            continue
        with fetched(item, fetcher) as whole:
            image = decode(whole.item)
        load_ms = image.load_ms + whole.took_ms
        yield replace(image, item=replace(image.item, data=None), load_ms=load_ms)
