"""Reads files from web servers, S3, Google Cloud Storage, Azure and the Hub."""

from __future__ import annotations

import io
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
from typing import Any, BinaryIO, Self

from pgcli.errors import SourceUnavailable
from pgcli.records import MAX_IMAGE_BYTES, Fault, Item
from pgcli.stores.folders import Entry
from pgcli.stores.urls import (
    EXPIRED,
    SCHEMES,
    Deadline,
    RemoteError,
    Result,
    TransientError,
    check_url,
    in_thread,
    is_web,
    url_scheme,
    without_credentials,
)

#: Only one image of more than this size is in memory at a time, so that many readers fit.
LARGE_BYTES = 16 * 2**20
#: The limit for fetching an image, with all tries.
FETCH_SECONDS = 60.0
#: The limit for the copy of a file on a web server; its bytes extend it.
FILE_SECONDS = 120.0
MIN_BYTES_PER_SECOND = 10_000
BUFFER_BYTES = 8 * 2**20
#: Space that copies leave free on their disk.
RESERVED_BYTES = 2**30


class Reader:
    """Reads URLs, from several threads at a time."""

    #: Concurrent fetches. Their threads wait for servers and need no core.
    fetch_threads = 16

    def __init__(self, *, allow_private_hosts: bool = False):
        self._allow_private_hosts = allow_private_hosts
        self._stopped = threading.Event()
        self._large, self._copying = threading.Lock(), threading.Lock()
        self._copies: dict[str, Path] = {}
        self._kinds: dict[str | None, Any] = {}

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """How another process recreates this reader, with its own connections."""
        return partial(type(self), allow_private_hosts=self._allow_private_hosts), ()

    @contextmanager
    def fetched(self, item: Item) -> Iterator[Item]:
        """The item with the bytes at its URL, or with a fault; other items are unchanged.

        Raises SourceUnavailable for expired credentials, which would cost every later item.
        """
        with ExitStack() as held:
            path = item.path or ""
            is_here = item.data is not None or item.fault is not None
            if not is_here and url_scheme(path) in SCHEMES:
                try:
                    item = replace(item, data=self._read(path, MAX_IMAGE_BYTES, held))
                except RemoteError as error:
                    if error.fault == EXPIRED:
                        raise source_unavailable(path, error.fault) from error
                    item = replace(item, fault=error.fault)
            yield item

    def read(self, url: str, limit: int = MAX_IMAGE_BYTES) -> bytes:
        """The bytes at a URL, at most `limit`. Raises RemoteError."""
        with ExitStack() as held:
            return self._read(url, limit, held)

    def open(self, url: str, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
        """The file at a URL as a seekable stream. Raises RemoteError and SourceUnavailable."""
        if is_web(url):
            return self.local_copy(url).open("rb")

        def wait(call: Callable[[], Any]) -> Any:
            with lasting_errors(url):
                return self._wait(url, call)

        size, read = wait(lambda: self._files(url).open(url))
        file = RemoteFile(size, lambda start, stop: wait(lambda: read(start, stop)))
        return io.BufferedReader(file, buffer_bytes)

    def local_copy(self, url: str) -> Path:
        """A copy of the file at a URL on a web server, made once, and deleted with this reader.

        Raises RemoteError and SourceUnavailable.
        """
        with self._copying:
            if url not in self._copies:
                path = Path(self._folder) / str(len(self._copies))
                room = shutil.disk_usage(self._folder).free - RESERVED_BYTES
                deadline = Deadline(FILE_SECONDS, self._stopped)
                try:
                    with path.open("wb") as file, lasting_errors(url):
                        download = partial(self._files(url).download, url, file, room, deadline)
                        self._wait(url, partial(download, MIN_BYTES_PER_SECOND), deadline)
                except OSError as error:
                    path.unlink(missing_ok=True)
                    message = f"{path} cannot be written: {error.strerror}."
                    if isinstance(error, RemoteError):
                        if error.fault.code != "too_large":
                            raise
                        message = "The temporary folder has no space for the file; set TMPDIR."
                    raise RemoteError(Fault("io_error", message)) from error
                self._copies[url] = path
            return self._copies[url]

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if the store has neither at the URL.

        Raises RemoteError and SourceUnavailable.
        """
        with lasting_errors(url):
            return str(self._wait(url, lambda: self._files(url).kind(url)))

    def entries(self, url: str) -> Iterator[Entry]:
        """The files (relative paths) below a folder of a store, in the order of its listing.

        That is the order of names, except for directory buckets. Raises RemoteError and
        SourceUnavailable.
        """
        with lasting_errors(url):
            next_page = self._wait(url, lambda: self._files(url).pages(url))
            while page := self._wait(url, next_page):
                yield from page

    def stop(self) -> None:
        """Make all reads fail, including current ones."""
        self._stopped.set()

    def _read(self, url: str, limit: int, held: ExitStack) -> bytes:
        """The bytes at a URL; closing `held` lets the next large file start."""
        try:
            return self._download(url, min(limit, LARGE_BYTES))
        except RemoteError as error:
            if error.fault.code != "too_large" or limit <= LARGE_BYTES:
                raise
        held.enter_context(self._large)
        return self._download(url, limit)

    def _download(self, url: str, limit: int) -> bytes:
        deadline = Deadline(FETCH_SECONDS, self._stopped)
        # one growing buffer: chunks would fragment memory
        with io.BytesIO() as file:
            self._wait(url, lambda: self._files(url).download(url, file, limit, deadline), deadline)
            return file.getvalue()

    def _wait(
        self, url: str, call: Callable[[], Result], deadline: Deadline | None = None
    ) -> Result:
        """The result of a call that reads a URL. Raises RemoteError."""
        check_url(url)
        with self._files(url).errors():
            return in_thread(call, deadline or Deadline(inf, self._stopped))

    def _files(self, url: str) -> Any:
        """The files of this kind of URL, with their connections. Their modules import slowly."""
        scheme = "https" if is_web(url) else url_scheme(url)
        if scheme not in self._kinds:
            if scheme == "https":
                from pgcli.stores.web import WebFiles

                self._kinds[scheme] = WebFiles(allow_private_hosts=self._allow_private_hosts)
            elif scheme == "hf":
                from pgcli.stores.web import HubFiles

                self._kinds[scheme] = HubFiles()
            else:
                from pgcli.stores.objects import ObjectFiles

                self._kinds[scheme] = ObjectFiles()
        return self._kinds[scheme]

    @cached_property
    def _folder(self) -> str:
        folder = mkdtemp(prefix="pgcli-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder


@contextmanager
def lasting_errors(url: str) -> Iterator[None]:
    """A block that raises SourceUnavailable for transient errors that lasted for minutes.

    That ends a command: a listing without some files, or an archive without some members, would
    look complete.
    """
    try:
        yield
    except TransientError as error:
        raise source_unavailable(url, error.fault) from error


def source_unavailable(url: str, fault: Fault) -> SourceUnavailable:
    """The error that ends a command whose source cannot be read now."""
    message = fault.message.rstrip(".")
    return SourceUnavailable(
        f"{without_credentials(url)}: {message[:1].lower()}{message[1:]}",
        hint="renew the credentials of the environment, then run the same command again"
        if fault == EXPIRED
        else "check the URL, the network and the credentials; then try again",
    )


class RemoteFile(io.RawIOBase):
    """A remote file as a stream; `read` requests the bytes from one position to another."""

    def __init__(self, size: int, read: Callable[[int, int], Any]):
        self._size, self._read, self._position = size, read, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, starts[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer. A failed request leaves the position unchanged."""
        count = min(len(buffer), self._size - self._position)
        if count <= 0:
            return 0
        data = memoryview(self._read(self._position, self._position + count))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def make_reader(*, allow_urls: bool, allow_private_hosts: bool) -> Reader | None:
    """A reader of URLs, or None if they are not allowed."""
    return Reader(allow_private_hosts=allow_private_hosts) if allow_urls else None
