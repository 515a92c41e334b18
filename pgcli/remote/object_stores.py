"""Reads files and lists folders of S3, Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from pgcli.regular_file import read_text
from pgcli.remote.errors import (
    DENIED,
    MISSING,
    READING_FAILED,
    TOO_SLOW,
    RemoteError,
    failed,
    too_large,
)
from pgcli.remote.stored_file import StoredFile
from pgcli.remote.urls import scheme_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

CLIENT: ClientConfig = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=30),
    "timeout": timedelta(seconds=120),
}
RETRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
CHUNK_BYTES = 4 * 2**20  # most images are one
BUFFER_BYTES = 2**20
#: A store that failed after so long did not answer in time; `obstore` has no exception for that.
SLOW_SECONDS = 30.0


class ObjectStores:
    """The buckets that URLs name, opened when they are first needed."""

    def __init__(self) -> None:
        self._stores: dict[str, Any] = {}
        self._lock = Lock()

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if there is neither. Raises RemoteError."""
        store, path = self._open(url)
        with store_errors(), suppress(FileNotFoundError):
            if path:
                store.head(path)
                return "file"
        with store_errors(), listing(store, path):
            return "folder" if any(store.list(path or None, chunk_size=1)) else ""

    def list_files(self, url: str) -> list[str]:
        """The sorted relative paths of the files below a folder. Raises RemoteError."""
        store, path = self._open(url)
        start = len(path) + 1 if path else 0
        with store_errors(), listing(store, path):
            found = {one["path"][start:] for page in store.list(path or None) for one in page}
        folders = {name[:at] for name in found for at, c in enumerate(name) if c == "/"}
        return sorted(found - folders - {""})  # an empty object may stand for a folder

    def read(self, url: str, limit: int, on_size: Callable[[int], object]) -> bytes:
        """The contents of a file. `on_size` is called before they are read. Raises RemoteError."""
        store, path = self._open(url)
        with store_errors():
            response = store.get(path)
            size = response.meta["size"]
            if size > limit:
                raise RemoteError(too_large(limit))
            on_size(size)
            return b"".join(map(bytes, response.stream(min_chunk_size=CHUNK_BYTES)))

    def open(self, url: str) -> StoredFile:
        """The file as a seekable stream. Raises RemoteError."""
        import obstore

        store, path = self._open(url)
        with store_errors():
            file = obstore.open_reader(store, path, buffer_size=BUFFER_BYTES)
        return StoredFile(file, store_errors)

    def _open(self, url: str) -> tuple[Any, str]:
        bucket, _, path = url.partition("://")[2].partition("/")
        key = f"{scheme_of(url)}://{bucket}"
        with self._lock:
            if key not in self._stores:
                anonymous, _, name = bucket.rpartition("@")
                with store_errors():
                    make = MAKE[scheme_of(url)]
                    self._stores[key] = make(name, anonymous=bool(anonymous))
            return self._stores[key], path.strip("/")


def make_s3(bucket: str, *, anonymous: bool, retries: RetryConfig = RETRIES) -> Any:
    """A bucket of S3, or of the server that AWS_ENDPOINT_URL names."""
    from obstore.store import S3Store

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    options: dict[str, Any] = {"skip_signature": True} if anonymous else profile_keys()
    if endpoint:
        options |= {"endpoint": endpoint}
    elif not region:
        from pyarrow.fs import resolve_s3_region

        with suppress(OSError):  # the first request reports what is wrong
            region = resolve_s3_region(bucket)
    if region:
        options |= {"region": region}
    client: ClientConfig = {**CLIENT, "allow_http": (endpoint or "").startswith("http://")}
    return S3Store(bucket, client_options=client, retry_config=retries, **options)


def make_gcs(bucket: str, *, anonymous: bool, retries: RetryConfig = RETRIES) -> Any:
    """A bucket of Google Cloud Storage, or of the server that STORAGE_EMULATOR_HOST names."""
    from obstore.store import GCSStore

    options: dict[str, Any] = {"skip_signature": True} if anonymous else {}
    client: ClientConfig = {**CLIENT}
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        options |= {"base_url": url, "skip_signature": True}
        client["allow_http"] = url.startswith("http://")
    return GCSStore(bucket, client_options=client, retry_config=retries, **options)


def make_azure(container: str, *, anonymous: bool, retries: RetryConfig = RETRIES) -> Any:
    """A container of the account AZURE_STORAGE_ACCOUNT_NAME, or of AZURE_STORAGE_ENDPOINT."""
    from obstore.store import AzureStore

    options: dict[str, Any] = {"skip_signature": True} if anonymous else {}
    client: ClientConfig = {**CLIENT}
    if endpoint := os.environ.get("AZURE_STORAGE_ENDPOINT"):
        options |= {"endpoint": endpoint}
        client["allow_http"] = endpoint.startswith("http://")
    return AzureStore(container, client_options=client, retry_config=retries, **options)


MAKE = {"s3": make_s3, "gs": make_gcs, "az": make_azure}


def profile_keys() -> dict[str, str]:
    """The keys of AWS_PROFILE in the shared credentials file, which `obstore` does not read."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path("~/.aws/credentials").expanduser()
    profiles = ConfigParser(interpolation=None)
    with suppress(OSError, ValueError, ConfigError):
        profiles.read_string(read_text(file))
    name = os.environ.get("AWS_PROFILE") or "default"
    keys = dict(profiles[name]) if profiles.has_section(name) else {}
    names = ("access_key_id", "secret_access_key", "session_token")
    return {key: keys[f"aws_{key}"] for key in names if f"aws_{key}" in keys}


@contextmanager
def listing(store: Any, path: str) -> Iterator[None]:
    """Raise the typed error of a failed listing: `obstore` has one for a single object only."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError:
        store.head(path or "-")
        raise


@contextmanager
def store_errors(failure: str = READING_FAILED) -> Iterator[None]:
    """Turn the exceptions of `obstore` into RemoteError, by their types alone."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    began = monotonic()
    try:
        yield
    except RemoteError:
        raise
    except FileNotFoundError as error:
        raise RemoteError(MISSING) from error
    except (PermissionError, PermissionDeniedError, UnauthenticatedError) as error:
        raise RemoteError(DENIED) from error
    except (BaseError, OSError, ValueError) as error:
        if isinstance(error, TimeoutError) or monotonic() - began >= SLOW_SECONDS:
            raise RemoteError(TOO_SLOW) from error
        raise RemoteError(failed(reason(error), failure)) from error


def reason(error: Exception) -> str:
    """What went wrong, for display only: the end of the message, without the URL before it."""
    text = (str(error).splitlines() or [""])[0].rpartition(" - ")[2].rstrip(". :")
    return text if text and "://" not in text else f"the store failed with {type(error).__name__}"
