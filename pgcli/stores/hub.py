"""Reads files and lists folders of repositories on the Hugging Face Hub."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO

import httpx2

from pgcli.stores.errors import DENIED, MISSING, RemoteError, TransientError, failed, too_large
from pgcli.stores.store import Entry

if TYPE_CHECKING:
    from pgcli.stores.calls import Deadline

CHUNK_BYTES = 4 * 2**20
FAULTS = {401: DENIED, 403: DENIED, 404: MISSING}


class HubFiles:
    """Files at `hf://` URLs, by the file system of `huggingface_hub`; see `ObjectFiles`."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except RemoteError:
            raise
        except FileNotFoundError as error:
            raise RemoteError(MISSING) from error
        except (httpx2.HTTPError, OSError, ValueError) as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in FAULTS:
                raise RemoteError(FAULTS[status]) from error
            kind = TransientError if isinstance(error, httpx2.HTTPError) else RemoteError
            reason = f"the server answered {status}" if status else type(error).__name__
            raise kind(failed(reason)) from error

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
