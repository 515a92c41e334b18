"""Reads addresses: of web servers, S3, Google Cloud Storage, Azure and the Hub."""

from __future__ import annotations

import io
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from pgcli.records import MAX_IMAGE_BYTES, Item
from pgcli.stores.deadline import Deadline, run_abandonable
from pgcli.stores.errors import (
    CREDENTIALS,
    NO_ROOM,
    UNKNOWN_SCHEME,
    RemoteError,
    failed,
    too_large,
)
from pgcli.stores.store import Entry
from pgcli.stores.urls import SCHEMES, has_credentials, is_web, scheme_of

if TYPE_CHECKING:
    from pgcli.stores.hub import HubFiles
    from pgcli.stores.objects import ObjectFiles
    from pgcli.stores.web import WebClient

#: Images that are fetched at once. Their threads wait for servers, and need no core.
FETCH_THREADS = 16
#: One image of more than this size is held at a time, so that many readers fit into memory.
LARGE_BYTES = 16 * 2**20
#: Of all tries to fetch an image.
FETCH_SECONDS = 60.0
#: Of a part of any other file, and of a copy, to which its bytes add.
FILE_SECONDS = 120.0
MIN_BYTES_PER_SECOND = 10_000
BUFFER_BYTES = 8 * 2**20
#: What is left free of the disk that files are copied to.
RESERVED_BYTES = 2**30

Result = TypeVar("Result")


class Reader:
    """Reads addresses, from several threads at once."""

    fetch_threads = FETCH_THREADS

    def __init__(self, *, allow_private_hosts: bool = False):
        self._allow_private_hosts = allow_private_hosts
        self._stopped = threading.Event()
        self._large, self._copying = threading.Lock(), threading.Lock()
        self._copies: dict[str, Path] = {}
        self._opened: dict[str, ObjectFiles | HubFiles] = {}

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """What another process makes an equal reader by, with connections of its own."""
        return partial(type(self), allow_private_hosts=self._allow_private_hosts), ()

    @contextmanager
    def fetched(self, item: Item) -> Iterator[Item]:
        """The item with the bytes at its address, or with a fault; other items are unchanged."""
        with ExitStack() as held:
            path = item.path or ""
            is_here = item.data is not None or item.fault is not None or "://" not in path
            if not is_here and scheme_of(path) in SCHEMES:
                try:
                    item = replace(item, data=self._read(path, MAX_IMAGE_BYTES, held))
                except RemoteError as error:
                    item = replace(item, fault=error.fault)
            yield item

    def read(self, url: str, limit: int = MAX_IMAGE_BYTES) -> bytes:
        """The bytes at an address, at most `limit`. Raises RemoteError."""
        with ExitStack() as held:
            return self._read(url, limit, held)

    def open(self, url: str, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
        """The file at an address as a seekable stream. Raises RemoteError."""
        if is_web(url):
            return self.local_copy(url).open("rb")
        file = self._wait(url, lambda: self._files(url).open(url))
        seconds = FILE_SECONDS + buffer_bytes / MIN_BYTES_PER_SECOND
        wait = partial(self._wait, url, seconds=seconds)
        return io.BufferedReader(StoredFile(file, wait), buffer_bytes)

    def local_copy(self, url: str) -> Path:
        """A copy of the file at a web address, with its time if the server says it, else 1970.

        It is fetched once, and removed with this reader. Raises RemoteError.
        """
        check_url(url)
        with self._copying:
            if url not in self._copies:
                path = Path(self._folder) / str(len(self._copies))
                room = shutil.disk_usage(self._folder).free - RESERVED_BYTES

                def on_size(size: int) -> None:
                    if size > room:
                        raise RemoteError(NO_ROOM)

                deadline = Deadline(FILE_SECONDS, self._stopped)
                try:
                    with path.open("wb") as file:
                        modified = self._web.download(
                            url, file, deadline, on_size, MIN_BYTES_PER_SECOND
                        )
                    os.utime(path, (modified, modified))
                except BaseException as error:
                    path.unlink(missing_ok=True)
                    if isinstance(error, OSError) and not isinstance(error, RemoteError):
                        raise RemoteError(failed(f"{path} ({error.strerror})")) from error
                    raise
                self._copies[url] = path
            return self._copies[url]

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if a store has neither at the address. Raises RemoteError."""
        return self._wait(url, lambda: self._files(url).kind(url))

    def entries(self, url: str) -> Iterator[Entry]:
        """The files below a folder of a store, by their paths in it, as the store lists them.

        That is in the order of their names, but for directory buckets. Raises RemoteError.
        """
        pages = self._wait(url, lambda: self._files(url).pages(url))
        while page := self._wait(url, lambda: next(filter(None, pages), None)):
            yield from page

    def list_files(self, url: str) -> Iterator[str]:
        """The names of `entries`."""
        return (entry.name for entry in self.entries(url))

    def stop(self) -> None:
        """Make all reads fail, also those under way."""
        self._stopped.set()
        if "_web" in self.__dict__:
            self._web.close()

    def _read(self, url: str, limit: int, held: ExitStack) -> bytes:
        """The bytes at an address; `held` ends the wait of others if there are many."""
        check_url(url)
        deadline = Deadline(FETCH_SECONDS, self._stopped)
        file, is_large = io.BytesIO(), False  # which grows in place: chunks fragment the memory

        def on_size(size: int) -> None:
            nonlocal is_large
            if size > limit:
                raise RemoteError(too_large(limit))
            if size > LARGE_BYTES and not is_large:
                began, is_large = monotonic(), self._large.acquire()
                held.callback(self._large.release)
                deadline.extend(monotonic() - began)

        if is_web(url):
            self._web.download(url, file, deadline, on_size)
            return file.getvalue()
        chunks = self._files(url).chunks(url, limit)
        while chunk := self._wait(url, lambda: next(chunks, b""), deadline):
            on_size(file.tell() + len(chunk))
            file.write(chunk)
        return file.getvalue()

    def _wait(
        self,
        url: str,
        call: Callable[[], Result],
        deadline: Deadline | None = None,
        seconds: float = inf,
    ) -> Result:
        """What a call of a store returns, whose own limits hold too. Raises RemoteError."""
        check_url(url)
        with self._files(url).errors():
            return run_abandonable(call, deadline or Deadline(seconds, self._stopped))

    def _files(self, url: str) -> ObjectFiles | HubFiles:
        if scheme_of(url) == "hf":
            from pgcli.stores.hub import HubFiles  # slow to import, as are the next two

            return self._opened.setdefault("hub", HubFiles())
        from pgcli.stores.objects import ObjectFiles

        return self._opened.setdefault("objects", ObjectFiles())

    @cached_property
    def _web(self) -> WebClient:
        from pgcli.stores.web import WebClient

        return WebClient(allow_private_hosts=self._allow_private_hosts)

    @cached_property
    def _folder(self) -> str:
        folder = mkdtemp(prefix="pgcli-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder


class StoredFile(io.RawIOBase):
    """A file of a storage library as a stream. Reading it is a call that `wait` waits for."""

    def __init__(self, file: Any, wait: Callable[[Callable[[], Any]], Any]):
        self._file, self._wait = file, wait

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._wait(lambda: self._file.seek(offset, whence)))

    def readinto(self, buffer: Any) -> int:
        data = self._wait(lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = bytes(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def check_url(url: str) -> None:
    """Raise RemoteError for a URL of another scheme, or one that holds credentials."""
    if scheme_of(url) not in SCHEMES:
        raise RemoteError(UNKNOWN_SCHEME)
    if has_credentials(url):
        raise RemoteError(CREDENTIALS)


def make_reader(*, allow_urls: bool, allow_private_hosts: bool) -> Reader | None:
    """A reader of addresses, or None if they are not allowed."""
    return Reader(allow_private_hosts=allow_private_hosts) if allow_urls else None
