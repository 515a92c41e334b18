"""Reads files and lists folders of repositories on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pgcli.remote.errors import DENIED, MISSING, TOO_SLOW, RemoteError, failed, too_large
from pgcli.remote.stored_file import StoredFile

CHUNK_BYTES = 4 * 2**20


class HubFiles:
    """Files at `hf://` URLs, by the file system of `huggingface_hub`."""

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if there is neither. Raises RemoteError."""
        with hub_errors():
            try:
                found = self._files.info(url)["type"]
            except FileNotFoundError:
                return ""
        return "folder" if found == "directory" else "file"

    def list_files(self, url: str) -> list[str]:
        """The sorted relative paths of the files below a folder. Raises RemoteError."""
        with hub_errors():
            start = len(self._files.resolve_path(url).unresolve()) + 1
            return sorted(path[start:] for path in self._files.find(url))

    def read(self, url: str, limit: int, on_size: Callable[[int], object]) -> bytes:
        """The contents of a file. `on_size` is called as they grow. Raises RemoteError."""
        chunks: list[bytes] = []
        size = 0
        with hub_errors(), self._files.open(url, "rb", block_size=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                size += len(chunk)
                if size > limit:
                    raise RemoteError(too_large(limit))
                on_size(size)
                chunks.append(chunk)
        return b"".join(chunks)

    def open(self, url: str) -> StoredFile:
        """The file as a seekable stream. Raises RemoteError."""
        with hub_errors():
            return StoredFile(self._files.open(url, "rb"), hub_errors)

    @cached_property
    def _files(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem()


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
