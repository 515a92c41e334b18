"""Look at pictures ahead of the model, in processes of their own, bounded by bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pgcli.images.decoder_warnings import silence_decoders
from pgcli.records import DecodedImage, Item
from pgcli.workers.fetcher import Fetcher, fetched
from pgcli.workers.prefetcher import Prefetcher
from pgcli.workers.process import looked_at

__all__ = ["prefetch"]

DEFAULT_WORKERS = 4
MIN_ITEMS_FOR_WORKERS = 32  # below this, processes take longer to start than they save


def prefetch(
    items: Iterable[Item],
    decode: Callable[[Item], DecodedImage],
    *,
    workers: int | None,
    total: int | None,
    ahead_bytes: int = 64 * 2**20,
    stopped: Callable[[], bool] = lambda: False,
    fetcher: Fetcher | None = None,
) -> Iterator[DecodedImage]:
    """The items' pictures, in order, looked at by `workers` processes ahead of who takes them.

    With no workers, or where their `total` is known to be small and no number of workers was named,
    each is looked at in this process when it is asked for: nothing ends one there that takes for
    ever. Item bytes are let go once looked at. A picture that kills its process,
    twice, or takes longer than `process.TIME_LIMIT_SECONDS` has a fault; closing the iterator ends
    the processes. Once `stopped`, none is waited for any more. What must be fetched first, as from
    an address, `fetcher` brings, many at once.
    """
    are_few = workers is None and total is not None and total < MIN_ITEMS_FOR_WORKERS
    if workers == 0 or are_few:
        silence_decoders()
        for item in items:
            with fetched(item, fetcher) as whole:
                picture = looked_at(decode, whole.item)
            yield replace(picture, load_ms=picture.load_ms + whole.took_ms)
        return
    count = workers or min(DEFAULT_WORKERS, os.cpu_count() or 1)
    count = count if total is None else max(1, min(count, total))
    with Prefetcher(decode, count, ahead_bytes, fetcher) as ahead:
        threading.Thread(target=ahead.feed, args=(items,), daemon=True).start()
        yield from ahead.pictures(stopped)
