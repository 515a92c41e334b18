"""Several files of a repository at a time -> the cache, counted together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial

from pgcli.checkpoints.hub.blobs import Abandoned, Remote, arrived, fetch
from pgcli.checkpoints.hub.cache import Repository
from pgcli.checkpoints.hub.progress import DownloadProgress

AT_ONCE = 4  # one connection seldom fills a fast line


class Standing:
    """How far each file is, and with it what has arrived since `tell` was told last."""

    def __init__(self, tell: DownloadProgress, bytes_of: dict[str, int]):
        self._tell = tell
        self._bytes_of = bytes_of
        self._lock = threading.Lock()

    def at(self, name: str, size: int) -> None:
        with self._lock:
            arrived, self._bytes_of[name] = size - self._bytes_of[name], size
            if arrived:
                self._tell.count(arrived)

    def remark(self, message: str) -> None:
        with self._lock:
            self._tell.remark(message)


def fetch_all(repository: Repository, remotes: Sequence[Remote], tell: DownloadProgress) -> None:
    """Put the files into the cache, as `blobs.fetch` does; the first that fails ends all."""
    blobs = [repository.blob(remote.digest) for remote in remotes]
    kept = {remote.name: arrived(blob, remote) for remote, blob in zip(remotes, blobs, strict=True)}
    standing, over = Standing(tell, kept), threading.Event()
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="download")
    jobs = [
        pool.submit(
            fetch,
            remote,
            blob,
            repository.lock(remote.digest),
            at=partial(standing.at, remote.name),
            remark=standing.remark,
            over=over,
        )
        for remote, blob in zip(remotes, blobs, strict=True)
    ]
    try:
        wait(jobs, return_when=FIRST_EXCEPTION)
    except BaseException:  # a signal must not wait for a server
        over.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    over.set()
    pool.shutdown(cancel_futures=True)
    for job in jobs:
        if (problem := _problem(job)) is not None:
            raise problem


def _problem(job: Future[None]) -> BaseException | None:
    if job.cancelled():
        return None
    problem = job.exception()
    return None if isinstance(problem, Abandoned) else problem
