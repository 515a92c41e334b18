"""Bytes from addresses, for those who allowed it: pictures, manifests, archives, folders."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

from pgcli.records import MAX_IMAGE_BYTES, Item
from pgcli.remote.addresses import SCHEMES, STORE_SCHEMES, is_web, scheme_of, without_credentials
from pgcli.remote.errors import OTHER_SCHEME, RemoteError, too_large

if TYPE_CHECKING:
    from pgcli.remote.connection import Clock
    from pgcli.remote.object_stores import Stores
    from pgcli.remote.web import Web

__all__ = ["RemoteError", "RemoteFile", "UrlReader", "make_url_reader"]

#: Of pictures larger than this one is held at a time, so that many at once fit into memory.
LARGE_BYTES = 16 * 2**20
CHUNK_BYTES = 2**18
PIECE_BYTES = 4 * 2**20  # most pictures are one
BUFFER_BYTES = 8 * 2**20


class UrlReader:
    """How far a run may reach beyond the machine, and what it reaches there."""

    def __init__(self, *, allow_private_hosts: bool = False):
        self._allow_private_hosts = allow_private_hosts
        self._stopped = threading.Event()
        self._large = threading.Lock()

    @contextmanager
    def fetched(self, item: Item) -> Iterator[Item]:
        """The item with the bytes of its address, or with what is wrong; any other as it is."""
        if item.path is None or item.data is not None or scheme_of(item.path) not in SCHEMES:
            yield item
            return
        held = LargeFileSlot(self._large)
        try:
            try:
                item = replace(item, data=self.read(item.path, held=held))
            except RemoteError as problem:
                item = replace(item, fault=problem.fault)
            yield item
        finally:
            held.release()

    def read(
        self, address: str, most: int = MAX_IMAGE_BYTES, held: LargeFileSlot | None = None
    ) -> bytes:
        """All bytes at an address, no more than so many. Raises `RemoteError`."""
        held = held or LargeFileSlot(threading.Lock())
        if is_web(address):
            return self.web.with_retries(lambda clock: self._body(address, most, clock, held))
        if scheme_of(address) not in STORE_SCHEMES:
            raise RemoteError(OTHER_SCHEME)
        pieces: list[bytes] = []
        size = 0
        # to be told the size first would be one more question to the store
        with self.stores.open(address) as file:
            while piece := file.read(PIECE_BYTES):
                size += len(piece)
                if size > most:
                    raise RemoteError(too_large(most))
                held.claim(size)
                pieces.append(piece)
        return b"".join(pieces)

    def open(self, address: str, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
        """The file at an address, to be read from any place. Raises `RemoteError`."""
        if scheme_of(address) not in SCHEMES:
            raise RemoteError(OTHER_SCHEME)
        if is_web(address):
            from pgcli.remote.remote_file import Stream

            return io.BufferedReader(Stream(self.web, address), buffer_bytes)
        return io.BufferedReader(self.stores.open(address), buffer_bytes)

    def stop(self) -> None:
        """End what is under way: each of it is at fault, and nothing is waited for any more."""
        self._stopped.set()
        if "web" in self.__dict__:
            self.web.stop()

    @cached_property
    def web(self) -> Web:
        """Servers of the web; TLS is slow to import."""
        from pgcli.remote.web import Web

        return Web(allow_private_hosts=self._allow_private_hosts, stopped=self._stopped)

    @cached_property
    def stores(self) -> Stores:
        """Folders of the cloud; pyarrow is slow to import."""
        from pgcli.remote.object_stores import Stores

        return Stores()

    def _body(self, address: str, most: int, clock: Clock, held: LargeFileSlot) -> bytes:
        pieces: list[bytes] = []
        size = 0
        from pgcli.remote.connection import TOTAL_SECONDS

        with self.web.asked(address, clock, {}) as answer:
            if (answer.length or 0) > most:
                raise RemoteError(too_large(most))
            while piece := answer.read(CHUNK_BYTES):
                size += len(piece)
                if size > most:
                    raise RemoteError(too_large(most))
                if held.claim(size):
                    clock.renew(TOTAL_SECONDS)
                pieces.append(piece)
        return b"".join(pieces)


def make_url_reader(*, allow_urls: bool, allow_private_hosts: bool) -> UrlReader | None:
    """The way to addresses, where there is to be one."""
    return UrlReader(allow_private_hosts=allow_private_hosts) if allow_urls else None


class LargeFileSlot:
    """One picture's claim to be the large one, once it proves to be."""

    def __init__(self, lock: threading.Lock):
        self._lock, self._is_held = lock, False

    def claim(self, size: int) -> bool:
        """Whether it turns out large at so many bytes: then no other large one is held any more."""
        if size <= LARGE_BYTES or self._is_held:
            return False
        self._is_held = self._lock.acquire()
        return True

    def release(self) -> None:
        """Let the next one in."""
        if self._is_held:
            self._lock.release()


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address, as a manifest is named; as text without a user's name or password."""

    address: str
    url_reader: UrlReader

    def __str__(self) -> str:
        return without_credentials(self.address)

    def open(self, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
        """The file, to be read from any place. Raises `RemoteError`."""
        return self.url_reader.open(self.address, buffer_bytes)
