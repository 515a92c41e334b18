"""Reads files and lists folders of repositories on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

from pgcli.stores.errors import DENIED, MISSING, TOO_SLOW, RemoteError, failed, too_large
from pgcli.stores.store import Entry

if TYPE_CHECKING:
    from pgcli.stores.reader import Deadline

CHUNK_BYTES = 4 * 2**20


@contextmanager
def hub_errors() -> Iterator[None]:
    """Turn the exceptions of the Hub's client into RemoteError, by type and status."""
    from huggingface_hub.errors import HfHubHTTPError

    transport_error: Any = HfHubHTTPError.__bases__[0]
    try:
        yield
    except RemoteError:
        raise
    except (transport_error, OSError, ValueError) as error:
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(error, FileNotFoundError) or status == 404:
            fault = MISSING
        elif isinstance(error, PermissionError) or status in (401, 403):
            fault = DENIED
        elif isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
            fault = TOO_SLOW
        else:
            fault = failed(f"the Hub answered {status or type(error).__name__}")
        raise RemoteError(fault) from error


class HubFiles:
    """Files at `hf://` URLs, by the file system of `huggingface_hub`. As `ObjectFiles`."""

    errors = staticmethod(hub_errors)

    def kind(self, url: str) -> str:
        try:
            return "folder" if self._files.info(url)["type"] == "directory" else "file"
        except FileNotFoundError:
            return ""

    def pages(self, url: str) -> Iterator[list[Entry]]:
        start = len(self._files.resolve_path(url).unresolve()) + 1
        files = self._files.find(url, detail=True)  # in one page: the Hub says no times
        yield [Entry(path[start:], int(files[path]["size"] or 0), 0.0) for path in sorted(files)]

    def download(self, url: str, file: BinaryIO, limit: int, deadline: Deadline) -> None:
        with self._files.open(url, "rb", block_size=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                if file.tell() + len(chunk) > limit:
                    raise RemoteError(too_large(limit))
                deadline.remaining()
                file.write(chunk)

    def open(self, url: str) -> Any:
        return self._files.open(url, "rb")

    @cached_property
    def _files(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem()
