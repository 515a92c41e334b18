"""Reads and writes the objects of S3, Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, cached_property
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, BinaryIO

from pgcli.errors import OutputFailed
from pgcli.records import Fault
from pgcli.stores.folders import Entry, Version
from pgcli.stores.urls import (
    CHANGED,
    DENIED,
    EXPIRED,
    MISSING,
    PATIENCE_SECONDS,
    Deadline,
    RemoteError,
    Result,
    TransientError,
    failed,
    in_thread,
    too_large,
    url_scheme,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

CLIENT: ClientConfig = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=30),
    "timeout": timedelta(seconds=120),
    "allow_http": True,  # for an endpoint of the environment; other requests are to https
}
#: `obstore` repeats requests for so long, after pauses of up to 15 seconds.
RETRIES: RetryConfig = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=PATIENCE_SECONDS),
}
#: The limit of a call after one has failed in spite of that, as while a run ends.
LOST_SECONDS = 10.0
CHUNK_BYTES = 4 * 2**20
PAGE = 1000
#: The error code in a response, and the faults for which `obstore` has no exception.
CODE = re.compile("<Code>([A-Za-z]{1,64})</Code>")
CODES = {
    "ExpiredToken": EXPIRED,
    "TokenRefreshRequired": EXPIRED,
    "AccessDenied": DENIED,
    "NoSuchBucket": MISSING,
}


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn the exceptions of `obstore` into RemoteError and TransientError."""
    from obstore import exceptions

    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    try:
        yield
    except FileNotFoundError as error:
        raise RemoteError(MISSING) from error
    except exceptions.PreconditionError as error:
        raise RemoteError(CHANGED) from error
    except exceptions.InvalidPathError as error:  # also in a listing: a key like `a//b.png`
        raise RemoteError(rejected_name(reason(error))) from error
    except exceptions.BaseError as error:
        codes = CODE.findall(str(error))[-1:]  # the message ends with the response
        fault = CODES.get(*codes) if codes else None
        if fault is None and not isinstance(error, denied):
            raise TransientError(failed(reason(error, *codes))) from error
        raise (TransientError if fault is EXPIRED else RemoteError)(fault or DENIED) from error
    except ValueError as error:  # not RemoteError, which is an OSError
        raise RemoteError(rejected_name(str(error).partition("\n")[0])) from error


def reason(error: Exception, code: str = "") -> str:
    """The error for display, without the URL before it and without the response after it."""
    text = str(error).partition("\n")[0]
    text = (text.partition(" - ")[2] or text).partition(": <")[0].rstrip(". :")
    if not text or "://" in text:
        text = f"obstore failed with {type(error).__name__}"
    return f"{text} ({code})" if code else text


def rejected_name(reason: str) -> Fault:
    return Fault("path_not_allowed", f"obstore cannot read an object of this name: {reason}.")


class ObjectStore:
    """The objects of a folder of a bucket; its methods do what those of LocalStore do."""

    def __init__(self, url: str):
        self.url = f"{url.rstrip('/')}/"
        self._stopped = threading.Event()
        self._is_lost = False

    def list(self, prefix: str = "") -> Iterator[Entry]:
        parent, slash, start = prefix.rpartition("/")
        for entry in self._call(lambda: list(objects_below(self._objects, parent))):
            is_hidden = "/" in entry.name or entry.name.startswith(".")
            if entry.name.startswith(start) and not is_hidden:
                yield entry._replace(name=parent + slash + entry.name)

    def read(self, name: str) -> bytes | None:
        version = self.version(name)
        return None if version is None else version.data

    def read_end(self, name: str, count: int, size: int) -> bytes | None:
        """The last bytes of a file of this size; Azure supports no ranges from the end."""

        def content() -> bytes | None:
            with suppress(FileNotFoundError):
                start = max(0, size - count)
                return bytes(self._objects.get_range(name, start=start, end=size)) if size else b""
            return None

        return self._call(content)

    def create(self, name: str, data: bytes) -> bool:
        def is_created() -> bool:
            # read first: a store that ignores conditions would replace the object
            with suppress(FileNotFoundError):
                return bytes(self._objects.get(name).bytes()) == data
            return self._put(name, data, "create")

        # once more: an earlier try may have created it although the store answered with an error
        return self._call(is_created) or self._call(is_created)

    def replace(self, name: str, data: bytes) -> None:
        self._call(lambda: self._objects.put(name, data, use_multipart=False))

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
        return self._call(lambda: self._put(name, data, mode))

    def folders(self) -> Sequence[str]:
        return self._call(lambda: self._objects.list_with_delimiter()["common_prefixes"])

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)

        def remove() -> None:
            try:
                self._objects.delete(names)
            except FileNotFoundError:  # a store that deletes one by one stops here
                for name in names:
                    with suppress(FileNotFoundError):
                        self._objects.delete(name)

        self._call(remove)

    def _put(self, name: str, data: bytes, mode: Any) -> bool:
        """Put an object in a mode of `obstore`; False if the mode's condition is not met."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._objects.put(name, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except FileNotFoundError:
            if mode == "create":
                raise
            return False
        return True

    @cached_property
    def _objects(self) -> Any:
        return open_bucket(self.url)

    def _call(self, call: Callable[[], Result]) -> Result:
        """The result of the call. Raises OutputFailed.

        The first failure is repeated: `obstore` does not repeat conditional puts and deletes whose
        connection broke. Until a call succeeds, each has LOST_SECONDS.
        """
        seconds = LOST_SECONDS if self._is_lost else inf
        try:
            with store_errors():
                result = in_thread(call, Deadline(seconds, self._stopped))
        except RemoteError as problem:
            if isinstance(problem, TransientError) and not self._is_lost:
                self._is_lost = True
                return self._call(call)
            raise OutputFailed(
                f"{self.url} cannot be used: {problem.fault.message}",
                hint="give the credentials in the environment permission to list, read, write "
                "and delete there"
                if problem.fault is DENIED
                else "check the URL, the store and the credentials of the environment; the same "
                "command resumes the run",
            ) from problem
        self._is_lost = False
        return result


class ObjectFiles:
    """Files at any URL of these stores, for reading; `errors` converts exceptions."""

    errors = staticmethod(store_errors)

    def __init__(self) -> None:
        self._open_bucket = cache(open_bucket)

    def kind(self, url: str) -> str:
        """`file`, `folder`, or `` if there is neither."""
        bucket, path = self._open(url)
        if path:
            with suppress(FileNotFoundError):
                bucket.get(path)  # the response to HEAD does not say why it is denied
                return "file"
        return "folder" if any(objects_below(bucket, path, 1)) else ""

    def pages(self, url: str) -> Callable[[], list[Entry]]:
        """A function for the next files below a folder, by relative path; none after the last."""
        entries = objects_below(*self._open(url))
        return lambda: list(islice(entries, PAGE))

    def download(self, url: str, file: BinaryIO, limit: int, deadline: Deadline) -> None:
        """Write a file. Raises RemoteError if it is larger than the `limit`."""
        bucket, path = self._open(url)
        response = bucket.get(path)
        if response.meta["size"] > limit:
            raise RemoteError(too_large(limit))
        for chunk in response.stream(min_chunk_size=CHUNK_BYTES):
            deadline.remaining()
            file.write(chunk)

    def open(self, url: str) -> tuple[int, Callable[[int, int], Any]]:
        """The size of a file, and a function that reads a range until the file is replaced."""
        bucket, path = self._open(url)
        meta = bucket.get(path).meta

        def read(start: int, stop: int) -> Any:
            options = {"range": (start, stop), "if_match": meta["e_tag"]}
            return bucket.get(path, options=options).bytes()

        return meta["size"], read

    def _open(self, url: str) -> tuple[Any, str]:
        name, path = split_url(url)
        if path.startswith("/"):  # `obstore` would read the object without the slash
            raise RemoteError(rejected_name(f"{path!r} begins with a slash"))
        return self._open_bucket(f"{url_scheme(url)}://{name}"), path


def split_url(url: str) -> tuple[str, str]:
    """The bucket of a URL, including `anonymous@`, and the path in it."""
    bucket, _, path = url.partition("://")[2].partition("/")
    return bucket, path.rstrip("/")


def open_bucket(url: str) -> Any:
    """The bucket of a URL, or a folder in it; `obstore` reads the environment."""
    from obstore import store

    name, folder = split_url(url)
    anonymous, _, bucket = name.rpartition("@")
    kinds: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
    return kinds[url_scheme(url)](
        bucket,
        prefix=folder or None,
        client_options=CLIENT,
        retry_config=RETRIES,
        **({"skip_signature": True} if anonymous else {}),
    )


def objects_below(bucket: Any, folder: str, page: int = PAGE) -> Iterator[Entry]:
    """The objects below a folder, by relative path."""
    start = len(folder) + 1 if folder else 0
    for metas in bucket.list(folder or None, chunk_size=page):
        for meta in metas:
            if name := meta["path"][start:]:
                yield Entry(name, meta["size"], meta["last_modified"].timestamp())
