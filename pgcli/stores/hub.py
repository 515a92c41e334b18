"""Reads files and lists folders of repositories on the Hugging Face Hub."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO

from pgcli.stores.errors import RemoteError, remote_errors, too_large
from pgcli.stores.store import Entry

if TYPE_CHECKING:
    from pgcli.stores.calls import Deadline

CHUNK_BYTES = 4 * 2**20


class HubFiles:
    """Files at `hf://` URLs, by the file system of `huggingface_hub`; see `ObjectFiles`."""

    def errors(self) -> AbstractContextManager[None]:
        from huggingface_hub.errors import HfHubHTTPError

        return remote_errors(HfHubHTTPError.__bases__[0])  # from its HTTP library

    def kind(self, url: str) -> str:
        try:
            return "folder" if self._files.info(url)["type"] == "directory" else "file"
        except FileNotFoundError:
            return ""

    def pages(self, url: str) -> Callable[[], list[Entry]]:
        start = len(self._files.resolve_path(url).unresolve()) + 1
        files = self._files.find(url, detail=True)  # a single page: the Hub gives no times
        sizes = {path[start:]: int(files[path]["size"] or 0) for path in sorted(files)}
        return partial(next, iter([[Entry(name, size, 0.0) for name, size in sizes.items()]]), [])

    def download(self, url: str, file: BinaryIO, limit: int, deadline: Deadline) -> None:
        file.seek(0)
        file.truncate()
        with self._files.open(url, "rb", block_size=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                if file.tell() + len(chunk) > limit:
                    raise RemoteError(too_large(limit))
                deadline.remaining()
                file.write(chunk)

    def open(self, url: str) -> tuple[int, Callable[[int, int], bytes]]:
        file, lock = self._files.open(url, "rb"), threading.Lock()

        def read(start: int, stop: int) -> bytes:
            with lock:  # an abandoned request of another thread may still read
                file.seek(start)
                return bytes(file.read(stop - start))

        return file.size, read

    @cached_property
    def _files(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem()
