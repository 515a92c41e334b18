"""Reads and writes the objects of S3, Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO

from pgcli.errors import OutputFailed, UsageError
from pgcli.records import Fault
from pgcli.stores.calls import Deadline, Result, patient
from pgcli.stores.errors import (
    DENIED,
    RemoteError,
    TransientError,
    failed,
    reason,
    rejected_name,
    remote_errors,
    source_of,
    status_in,
    too_large,
)
from pgcli.stores.files import read_text
from pgcli.stores.store import Entry, Version
from pgcli.stores.urls import scheme_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

CLIENT: ClientConfig = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=30),
    "timeout": timedelta(seconds=120),
}
#: `obstore` does not retry: `calls.patient` does, and covers errors that `obstore` would not.
RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
#: The variables with another server's URL, and those with a region.
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
#: Where S3 says the region of any bucket, and how long to wait for it.
S3, REGION_SECONDS = "https://s3.amazonaws.com", 5.0
CHUNK_BYTES = 4 * 2**20  # most images fit in one
PAGE = 1000  # objects in a page of a listing
#: In the message of a store that rejects conditional puts as not implemented.
NOT_IMPLEMENTED = ("NotImplemented", "501 Not Implemented")


def store_errors() -> AbstractContextManager[None]:
    """A block that turns the exceptions of `obstore` into RemoteError."""
    from obstore.exceptions import BaseError

    return remote_errors(BaseError)


class ObjectStore:
    """The objects of a folder of a bucket; for the errors of methods, see `Store`."""

    def __init__(self, url: str):
        self.url = f"{url.rstrip('/')}/"
        self._stopped = threading.Event()
        self._failed_kinds: set[str] = set()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files with this prefix, without hidden (temporary) files."""
        parent, slash, start = prefix.rpartition("/")
        next_page = self._call(lambda: Pages(self._objects, parent).next)
        while entries := self._call(next_page):
            for entry in entries:
                is_hidden = "/" in entry.name or entry.name.startswith(".")
                if entry.name.startswith(start) and not is_hidden:
                    yield entry._replace(name=parent + slash + entry.name)

    def read(self, name: str, *, last: int | None = None, size: int | None = None) -> bytes | None:
        def content() -> bytes | None:
            with suppress(FileNotFoundError):
                if last is None:
                    return bytes(self._objects.get(name).bytes())
                # Azure does not support ranges from the end
                end = object_metadata(self._objects, name)["size"] if size is None else size
                start = max(0, end - last)
                return bytes(self._objects.get_range(name, start=start, end=end)) if end else b""
            return None

        return self._call(content)

    def create(self, name: str, data: bytes) -> bool:
        def is_created() -> bool:
            # read first: a store that ignores conditions would replace the object
            with suppress(FileNotFoundError):
                return bytes(self._objects.get(name).bytes()) == data
            if not self._put(name, data, "create"):
                # another command is creating it, or an earlier try created it and then failed:
                # the next try reads it
                raise TransientError(failed(f"{name} can neither be created nor read"))
            return True

        return self._call(is_created, "write")

    def replace(self, name: str, data: bytes) -> None:
        self._call(lambda: self._objects.put(name, data, use_multipart=False), "write")

    def version(self, name: str) -> Version | None:
        def current() -> Version | None:
            with suppress(FileNotFoundError):
                response = self._objects.get(name)
                meta = response.meta
                # S3 and Azure compare the ETag, Google Cloud Storage the version
                tag = {key: meta[key] for key in ("e_tag", "version") if meta[key] is not None}
                return Version(bytes(response.bytes()), meta["last_modified"].timestamp(), tag)
            return None

        return self._call(current)

    def swap(self, name: str, data: bytes, version: Version | None) -> bool:
        mode = "create" if version is None else version.tag or None
        return self._call(lambda: self._put(name, data, mode), "write")

    def folders(self) -> Sequence[str]:
        return self._call(lambda: list(self._objects.list_with_delimiter()["common_prefixes"]))

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)

        def remove() -> None:
            try:
                self._objects.delete(names)
            except FileNotFoundError:  # a store that deletes one by one stops here
                for name in names:
                    with suppress(FileNotFoundError):
                        self._objects.delete(name)

        self._call(remove, "delete")

    def _put(self, name: str, data: bytes, mode: Any) -> bool:
        """Put an object in a mode of `obstore`; False if the mode's condition is not met.

        A store without conditional writes replaces the object.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            self._objects.put(name, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except FileNotFoundError:
            if mode == "create":  # the bucket does not exist
                raise
            return False
        except BaseError as problem:
            if not lacks_conditions(problem):
                raise
            self._objects.put(name, data, use_multipart=False)
        return True

    @cached_property
    def _objects(self) -> Any:
        return open_bucket(self.url, split_url(self.url)[1])

    def _call(self, call: Callable[[], Result], kind: str = "read") -> Result:
        """The result of the call. Raises OutputFailed.

        After a call failed in spite of retries, as while a run ends, further calls of its kind are
        tried only once, until one succeeds.
        """
        tries = 1 if kind in self._failed_kinds else inf
        try:
            result = patient(call, store_errors, Deadline(inf, self._stopped), tries=tries)
        except RemoteError as problem:
            if isinstance(problem, TransientError):
                self._failed_kinds.add(kind)
            raise self._failed(problem.fault) from problem
        self._failed_kinds.discard(kind)
        return result

    def _failed(self, fault: Fault) -> OutputFailed:
        return OutputFailed(
            f"{self.url} cannot be used: {fault.message}",
            hint="give the credentials in the environment permission to list, read, write "
            "and delete there"
            if fault is DENIED
            else "renew the credentials of the environment; the same command resumes the run"
            if fault.code == "permission_denied"
            else "check the URL and the store; the same command resumes the run",
        )


def lacks_conditions(error: Exception) -> bool:
    """Whether a store rejected a put because it does not support conditional writes."""
    from obstore.exceptions import NotSupportedError

    is_refused = any(words in str(error) for words in NOT_IMPLEMENTED)
    return isinstance(error, NotSupportedError) or is_refused


class ObjectFiles:
    """Files at any URL of these stores, for reading; `errors` converts exceptions."""

    errors = staticmethod(store_errors)

    def __init__(self) -> None:
        self._buckets: dict[str, Any] = {}

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if there is neither."""
        bucket, path = self._open(url)
        if path:
            with suppress(FileNotFoundError):
                object_metadata(bucket, path)
                return "file"
        return "folder" if Pages(bucket, path, 1).next() else ""

    def pages(self, url: str) -> Callable[[], list[Entry]]:
        """A function for the next files below a folder, by relative path; none after the last."""
        return Pages(*self._open(url)).next

    def download(self, url: str, file: BinaryIO, limit: int, deadline: Deadline) -> None:
        """Write a file. Raises RemoteError if it is larger than the `limit`."""
        bucket, path = self._open(url)
        file.seek(0)
        file.truncate()
        response = bucket.get(path)
        if response.meta["size"] > limit:
            raise RemoteError(too_large(limit))
        for chunk in response.stream(min_chunk_size=CHUNK_BYTES):
            deadline.remaining()
            file.write(chunk)

    def open(self, url: str) -> tuple[int, Callable[[int, int], Any]]:
        """The size of a file, and a function that reads a range until the file is replaced."""
        bucket, path = self._open(url)
        meta = object_metadata(bucket, path)

        def read(start: int, stop: int) -> Any:
            options = {"range": (start, stop), "if_match": meta["e_tag"]}
            return bucket.get(path, options=options).bytes()

        return meta["size"], read

    def _open(self, url: str) -> tuple[Any, str]:
        name, path = split_url(url)
        if path.startswith("/"):  # `obstore` would read the object without the slash
            raise RemoteError(rejected_name(f"{path!r} begins with a slash"))
        key = f"{scheme_of(url)}://{name}"
        if key not in self._buckets:  # several threads may open it; one is kept
            self._buckets[key] = open_bucket(url)
        return self._buckets[key], path


def split_url(url: str) -> tuple[str, str]:
    """The bucket of a URL, including `anonymous@`, and the path in it."""
    bucket, _, path = url.partition("://")[2].partition("/")
    return bucket, path.rstrip("/")


def object_metadata(bucket: Any, path: str) -> Any:
    """The size and the tag of an object. The response to HEAD does not say why it is denied."""
    from obstore.exceptions import BaseError

    try:
        return bucket.head(path)
    except BaseError as error:
        if status_in(source_of(error)) not in (400, 403):
            raise
        return bucket.get(path).meta


def open_bucket(url: str, folder: str | None = None) -> Any:
    """The bucket of a URL, or a folder in it, on the server that the environment names.

    `obstore` reads the rest of the environment itself.
    """
    from obstore import store

    scheme = scheme_of(url)
    anonymous, _, bucket = split_url(url)[0].rpartition("@")
    options: dict[str, Any] = {"skip_signature": True} if anonymous else {}
    endpoint = next(filter(None, map(os.environ.get, ENDPOINTS[scheme])), "")
    if scheme == "s3":
        options |= {} if anonymous else profile_keys()
        if not endpoint and not any(map(os.environ.get, REGIONS)):
            options |= bucket_region(bucket)
    elif scheme == "gs" and endpoint:
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        options |= {"base_url": endpoint, "skip_signature": True}
    client: ClientConfig = {**CLIENT, "allow_http": endpoint.startswith("http://")}
    kinds: dict[str, Any] = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
    options |= {"client_options": client, "retry_config": RETRIES}
    return kinds[scheme](bucket, prefix=folder, **options)


def bucket_region(bucket: str) -> dict[str, str]:
    """The region of an S3 bucket; empty if unknown, as the first request then says why."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import quote
    from urllib.request import Request, urlopen

    head = Request(f"{S3}/{quote(bucket, safe='')}", method="HEAD")
    try:
        with urlopen(head, timeout=REGION_SECONDS) as response:
            headers = response.headers
    except HTTPError as error:  # S3 names the region also where it denies access
        headers = error.headers
    except (OSError, HTTPException):
        return {}
    region = headers.get("x-amz-bucket-region")
    return {"region": region} if region else {}


def profile_keys() -> dict[str, str]:
    """The keys of AWS_PROFILE in the shared credentials file, which `obstore` does not read."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    default = os.path.expanduser("~/.aws/credentials")  # noqa: PTH111 - Path raises without a home
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or default
    profiles = ConfigParser(interpolation=None)
    with suppress(OSError, ValueError, ConfigError):
        profiles.read_string(read_text(file))
    name = os.environ.get("AWS_PROFILE") or "default"
    keys = dict(profiles[name]) if profiles.has_section(name) else {}
    names = ("access_key_id", "secret_access_key", "session_token")
    return {key: keys[f"aws_{key}"] for key in names if f"aws_{key}" in keys}


class Pages:
    """The objects below a folder as relative paths, in the order of the store's listing.

    After an error, the next page begins after the last object.
    """

    def __init__(self, bucket: Any, folder: str, size: int = PAGE):
        self._bucket, self._folder, self._size, self._after = bucket, folder, size, ""
        self._stream: Any = None

    def next(self) -> list[Entry]:
        """The next objects; empty at the end."""
        start = len(self._folder) + 1 if self._folder else 0
        if self._stream is None:
            self._stream = list_objects(self._bucket, self._folder, self._after, self._size)
        stream, self._stream = self._stream, None
        for page in stream:
            self._stream, self._after = stream, page[-1]["path"]
            entries = [
                Entry(meta["path"][start:], meta["size"], meta["last_modified"].timestamp())
                for meta in page
                if meta["path"][start:]  # skips the object of the folder itself
            ]
            if entries:
                return entries
            self._stream = None
        self._stream = iter(())
        return []


def list_objects(bucket: Any, folder: str, after: str, size: int) -> Iterator[Sequence[Any]]:
    """The objects of a folder in pages of this size.

    `obstore` cannot list a page with a key like `a//b.png`; then S3 is listed by pyarrow, at once.
    Raises UsageError for such a key in another store.
    """
    from obstore.exceptions import InvalidPathError
    from obstore.store import S3Store

    try:
        for page in bucket.list(folder or None, offset=after or None, chunk_size=size):
            after = page[-1]["path"]
            yield page
    except InvalidPathError as error:
        if not isinstance(bucket, S3Store):
            raise UsageError(
                f"obstore cannot list an object: {reason(error)}",
                hint="rename the object, or name the images in a manifest",
            ) from error
        yield [meta for meta in all_objects(bucket.config, folder) if meta["path"] > after]


def all_objects(config: Mapping[str, Any], folder: str) -> list[dict[str, Any]]:
    """The objects of a folder of an S3 bucket, listed by pyarrow, in the order of their keys."""
    from pyarrow import fs

    start = len(config["bucket"]) + 1
    system = fs.S3FileSystem(
        anonymous="skip_signature" in config,
        region=config.get("region") or next(filter(None, map(os.environ.get, REGIONS)), None),
        endpoint_override=next(filter(None, map(os.environ.get, ENDPOINTS["s3"])), None),
    )
    selector = fs.FileSelector(f"{config['bucket']}/{folder}", recursive=True)
    return sorted(
        (
            {"path": info.path[start:], "size": info.size, "last_modified": info.mtime}
            for info in system.get_file_info(selector)
            if info.is_file
        ),
        key=itemgetter("path"),
    )
