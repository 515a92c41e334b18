"""Reads the URLs of web servers, S3, Google Cloud Storage, Azure and the Hub."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, BinaryIO, Self, TypeVar

from pgcli.records import MAX_IMAGE_BYTES, Item
from pgcli.remote.abandonable import run_abandonable
from pgcli.remote.deadline import FETCH_SECONDS, Deadline
from pgcli.remote.errors import CREDENTIALS, TOO_SLOW, UNKNOWN_SCHEME, RemoteError, too_large
from pgcli.remote.urls import SCHEMES, has_credentials, is_web, scheme_of, without_credentials

if TYPE_CHECKING:
    from pgcli.remote.hub_files import HubFiles
    from pgcli.remote.object_stores import ObjectStores
    from pgcli.remote.web import WebClient

#: One image of more than this size is held at a time, so that many readers fit into memory.
LARGE_BYTES = 16 * 2**20
CHUNK_BYTES = 2**18
#: Images that are fetched at once. Their threads wait for servers, and need no core.
FETCH_THREADS = 16
BUFFER_BYTES = 8 * 2**20

Result = TypeVar("Result")


class UrlReader:
    """Reads URLs, from several threads at once: images from `fetch_threads`."""

    def __init__(
        self,
        *,
        allow_private_hosts: bool = False,
        fetch_seconds: float | None = None,
        fetch_threads: int | None = None,
    ):
        self.fetch_threads = fetch_threads or FETCH_THREADS
        self._allow_private_hosts = allow_private_hosts
        self._fetch_seconds = fetch_seconds or FETCH_SECONDS
        self._stopped = threading.Event()
        self._large = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """What another process makes an equal reader by, with connections of its own."""
        make = partial(
            type(self),
            allow_private_hosts=self._allow_private_hosts,
            fetch_seconds=self._fetch_seconds,
            fetch_threads=self.fetch_threads,
        )
        return make, ()

    @contextmanager
    def fetched(self, item: Item) -> Iterator[Item]:
        """The item with the bytes at its URL, or with a fault; other items are unchanged."""
        if item.path is None or item.data is not None or scheme_of(item.path) not in SCHEMES:
            yield item
            return
        slot = LargeFileSlot(self._large)
        try:
            try:
                item = replace(item, data=self.read(item.path, slot=slot))
            except RemoteError as error:
                item = replace(item, fault=error.fault)
            yield item
        finally:
            slot.release()

    def read(
        self, url: str, limit: int = MAX_IMAGE_BYTES, slot: LargeFileSlot | None = None
    ) -> bytes:
        """The bytes at a URL, at most `limit`. Raises RemoteError.

        All tries end within the time for an image; waiting for the slot does not count.
        """
        check_url(url)
        slot, seconds = slot or LargeFileSlot(threading.Lock()), self._fetch_seconds
        if is_web(url):
            return self._web.with_retries(partial(self._read_web, url, limit, slot), seconds)
        deadline = Deadline(seconds, self._stopped)

        def on_size(size: int) -> None:
            with deadline.paused():
                slot.claim(size)

        try:
            return run_abandonable(lambda: self._store(url).read(url, limit, on_size), deadline)
        except TimeoutError as error:
            raise RemoteError(TOO_SLOW) from error

    def open(self, url: str, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
        """The file at a URL as a seekable stream. Raises RemoteError."""
        check_url(url)
        if not is_web(url):
            return io.BufferedReader(
                self._wait_for(lambda: self._store(url).open(url)), buffer_bytes
            )
        from pgcli.remote.web_file import WebFile

        return io.BufferedReader(WebFile(self._web, url), buffer_bytes)

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if a store has neither at the URL. Raises RemoteError."""
        check_url(url)
        return self._wait_for(lambda: self._store(url).kind(url))

    def list_files(self, url: str) -> list[str]:
        """The sorted relative paths of the files below a folder of a store. Raises RemoteError."""
        check_url(url)
        return self._wait_for(lambda: self._store(url).list_files(url))

    def stop(self) -> None:
        """Make all reads fail, also those under way."""
        self._stopped.set()
        if "_web" in self.__dict__:
            self._web.close()

    def _wait_for(self, call: Callable[[], Result]) -> Result:
        """What a call of a store returns, whose own time limits hold; a signal ends the wait."""
        return run_abandonable(call, Deadline(inf, self._stopped))

    def _store(self, url: str) -> ObjectStores | HubFiles:
        return self._hub if scheme_of(url) == "hf" else self._object_stores

    @cached_property
    def _web(self) -> WebClient:
        from pgcli.remote.web import WebClient  # slow to import, as are the next two

        return WebClient(allow_private_hosts=self._allow_private_hosts, stopped=self._stopped)

    @cached_property
    def _object_stores(self) -> ObjectStores:
        from pgcli.remote.object_stores import ObjectStores

        return ObjectStores()

    @cached_property
    def _hub(self) -> HubFiles:
        from pgcli.remote.hub_files import HubFiles

        return HubFiles()

    def _read_web(self, url: str, limit: int, slot: LargeFileSlot, deadline: Deadline) -> bytes:
        chunks: list[bytes] = []
        size = 0
        with self._web.get(url, deadline, {}) as response:
            if (response.length or 0) > limit:
                raise RemoteError(too_large(limit))
            while chunk := response.read(CHUNK_BYTES):
                size += len(chunk)
                if size > limit:
                    raise RemoteError(too_large(limit))
                with deadline.paused():
                    slot.claim(size)
                chunks.append(chunk)
        return b"".join(chunks)


class LargeFileSlot:
    """A reader's claim to hold the single large image."""

    def __init__(self, lock: threading.Lock):
        self._lock, self._is_held = lock, False

    def claim(self, size: int) -> None:
        """Take the slot once `size` exceeds LARGE_BYTES, which may wait."""
        if size > LARGE_BYTES and not self._is_held:
            self._is_held = self._lock.acquire()

    def release(self) -> None:
        """Free the slot, if it was taken."""
        if self._is_held:
            self._lock.release()


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, as a manifest is named; its text has no credentials."""

    address: str
    url_reader: UrlReader

    def __str__(self) -> str:
        return without_credentials(self.address)

    def open(self, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
        """The file as a seekable stream. Raises RemoteError."""
        return self.url_reader.open(self.address, buffer_bytes)


def check_url(url: str) -> None:
    """Raise RemoteError for a URL of another scheme, or one that holds credentials."""
    if scheme_of(url) not in SCHEMES:
        raise RemoteError(UNKNOWN_SCHEME)
    if has_credentials(url):
        raise RemoteError(CREDENTIALS)


def make_url_reader(
    *,
    allow_urls: bool,
    allow_private_hosts: bool,
    fetch_seconds: float | None = None,
    fetch_threads: int | None = None,
) -> UrlReader | None:
    """A reader of URLs, or None if they are not allowed."""
    if not allow_urls:
        return None
    return UrlReader(
        allow_private_hosts=allow_private_hosts,
        fetch_seconds=fetch_seconds,
        fetch_threads=fetch_threads,
    )
