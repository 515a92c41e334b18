"""Reads addresses: of web servers, S3, Google Cloud Storage, Azure and the Hub."""

from __future__ import annotations

import io
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from pgcli.records import MAX_IMAGE_BYTES, Fault, Item
from pgcli.stores.errors import NO_ROOM, STOPPED, RemoteError
from pgcli.stores.store import Entry
from pgcli.stores.urls import SCHEMES, check_url, is_web, scheme_of

if TYPE_CHECKING:
    from pgcli.stores.hub import HubFiles
    from pgcli.stores.objects import ObjectFiles
    from pgcli.stores.web import WebFiles

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
POLL_SECONDS = 0.1

Result = TypeVar("Result")


class Deadline:
    """The end of a request. Once `stopped` is set, no wait starts any more."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self._stopped, self._end = stopped, monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Allow so many seconds more."""
        self._end += seconds

    def remaining(self, limit: float = inf) -> float:
        """The seconds of one wait, at most `limit`. Raises TimeoutError, RemoteError if stopped."""
        if self._stopped.is_set():
            raise RemoteError(STOPPED)
        seconds = min(limit, self._end - monotonic())
        if seconds <= 0:
            raise TimeoutError
        return seconds


class Reader:
    """Reads addresses, from several threads at once."""

    #: Images that are fetched at once. Their threads wait for servers, and need no core.
    fetch_threads = 16

    def __init__(self, *, allow_private_hosts: bool = False):
        self._allow_private_hosts = allow_private_hosts
        self._stopped = threading.Event()
        self._large, self._copying = threading.Lock(), threading.Lock()
        self._copies: dict[str, Path] = {}
        self._too_slow: dict[str, Fault] = {}

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
        """A copy of the file at a web address, made once, and removed with this reader.

        Raises RemoteError, for a server that was too slow at once if it is asked again.
        """
        with self._copying:
            if url in self._too_slow:
                raise RemoteError(self._too_slow[url])
            if url not in self._copies:
                path = Path(self._folder) / str(len(self._copies))
                room = shutil.disk_usage(self._folder).free - RESERVED_BYTES
                deadline = Deadline(FILE_SECONDS, self._stopped)
                try:
                    with path.open("wb") as file:
                        download = partial(self._web.download, url, file, room, deadline)
                        self._wait(url, partial(download, MIN_BYTES_PER_SECOND), deadline)
                except OSError as error:
                    path.unlink(missing_ok=True)
                    fault = Fault("io_error", f"{path} cannot be written: {error.strerror}.")
                    if isinstance(error, RemoteError):
                        fault = NO_ROOM if error.fault.code == "too_large" else error.fault
                        if fault.code == "timeout":
                            self._too_slow[url] = fault
                    raise RemoteError(fault) from error
                self._copies[url] = path
            return self._copies[url]

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if a store has neither at the address. Raises RemoteError."""
        return str(self._wait(url, lambda: self._files(url).kind(url)))

    def entries(self, url: str) -> Iterator[Entry]:
        """The files below a folder of a store, by their paths in it, as the store lists them.

        That is in the order of their names, but for directory buckets. Raises RemoteError.
        """
        pages = self._wait(url, lambda: self._files(url).pages(url))
        while page := self._wait(url, lambda: next(filter(None, pages), None)):
            yield from page

    def stop(self) -> None:
        """Make all reads fail, also those under way."""
        self._stopped.set()

    def _read(self, url: str, limit: int, held: ExitStack) -> bytes:
        """The bytes at an address; `held` ends the wait of other large files."""
        try:
            return self._download(url, min(limit, LARGE_BYTES))
        except RemoteError as error:
            if error.fault.code != "too_large" or limit <= LARGE_BYTES:
                raise
        held.enter_context(self._large)
        return self._download(url, limit)

    def _download(self, url: str, limit: int) -> bytes:
        deadline = Deadline(FETCH_SECONDS, self._stopped)
        # it grows in place, as chunks would fragment the memory, which is free once it is closed
        with io.BytesIO() as file:
            self._wait(url, lambda: self._files(url).download(url, file, limit, deadline), deadline)
            return file.getvalue()

    def _wait(
        self,
        url: str,
        call: Callable[[], Result],
        deadline: Deadline | None = None,
        seconds: float = inf,
    ) -> Result:
        """What a call returns that reads an address. Raises RemoteError.

        No signal interrupts such a call, and it may have no time limit: it runs in a thread, which
        is abandoned at the deadline, or when a signal raises an exception here.
        """
        check_url(url)
        deadline = deadline or Deadline(seconds, self._stopped)
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                future.set_exception(error)

        with self._files(url).errors():
            deadline.remaining()
            threading.Thread(target=run, name="pgcli-remote", daemon=True).start()
            while not future.done():
                wait([future], deadline.remaining(POLL_SECONDS))
            return future.result()

    def _files(self, url: str) -> Any:
        """What reads addresses of this kind."""
        return self._web if is_web(url) else self._hub if scheme_of(url) == "hf" else self._objects

    @cached_property
    def _web(self) -> WebFiles:
        from pgcli.stores.web import WebFiles  # slow to import, as are the next two

        return WebFiles(allow_private_hosts=self._allow_private_hosts)

    @cached_property
    def _hub(self) -> HubFiles:
        from pgcli.stores.hub import HubFiles

        return HubFiles()

    @cached_property
    def _objects(self) -> ObjectFiles:
        from pgcli.stores.objects import ObjectFiles

        return ObjectFiles()

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


def make_reader(*, allow_urls: bool, allow_private_hosts: bool) -> Reader | None:
    """A reader of addresses, or None if they are not allowed."""
    return Reader(allow_private_hosts=allow_private_hosts) if allow_urls else None
