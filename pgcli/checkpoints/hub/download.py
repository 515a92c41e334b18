"""Runs `huggingface_hub.snapshot_download` with our progress reports, and cancels it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from huggingface_hub import snapshot_download
from tqdm import tqdm

from pgcli.checkpoints.hub.download_progress import DownloadProgress

#: How long a cancelled download may take to remove its temporary files.
CANCEL_SECONDS = 2.0


class Cancelled(Exception):
    """The download was cancelled."""


class DownloadCounter:
    """Counts the bytes of one download, and ends its threads once it is cancelled.

    `snapshot_download` has two bars of bytes, received and written, which differ for Xet only; the
    larger count is the progress.
    """

    def __init__(self, progress: DownloadProgress):
        self._progress = progress
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._bars: list[ByteReporter] = []
        self._reported = 0

    @property
    def tqdm_class(self) -> Any:
        """What the client makes its progress bars with."""
        return partial(ByteReporter, self)

    def add(self, bar: ByteReporter) -> None:
        self._bars.append(bar)

    def cancel(self) -> None:
        """Make the next report of each thread raise `Cancelled`."""
        self._cancelled.set()

    def update(self, bar: ByteReporter, byte_count: int) -> None:
        """Report what has arrived since the last report."""
        if self._cancelled.is_set():
            raise Cancelled
        with self._lock:
            bar.n += byte_count
            arrived = max(int(bar.n) for bar in self._bars)
            if arrived != self._reported:
                self._progress.advance(arrived - self._reported)
                self._reported = arrived


class ByteReporter(tqdm):  # type: ignore[type-arg]
    """A progress bar that draws nothing and reports bytes to a `DownloadCounter`."""

    def __init__(self, counter: DownloadCounter, unit: str = "it", **options: Any):
        super().__init__(disable=True, total=options.get("total"))
        self._counter = counter if unit == "B" else None
        if self._counter is not None:
            self._counter.add(self)

    def update(self, n: float | None = 1) -> bool | None:
        if self._counter is not None:
            self._counter.update(self, int(n or 0))
        return None


def download(name: str, commit: str, files: Sequence[str], progress: DownloadProgress) -> None:
    """Download files of a commit into the cache. A signal cancels it; complete files are kept."""
    counter = DownloadCounter(progress)
    pool = ThreadPoolExecutor(1, thread_name_prefix="download")
    job = pool.submit(
        snapshot_download,
        name,
        revision=commit,
        allow_patterns=list(files),
        tqdm_class=counter.tqdm_class,
    )
    try:
        job.result()
    except BaseException:  # a signal must not wait for the server
        counter.cancel()
        wait([job], timeout=CANCEL_SECONDS)
        raise
    finally:
        pool.shutdown(wait=False)
