"""Writes, reads and lists the objects of a folder in S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pgcli.errors import OutputFailed, UsageError
from pgcli.records import Fault
from pgcli.remote.errors import DENIED, RemoteError, failed
from pgcli.remote.object_stores import MAKE, RETRIES, store_errors
from pgcli.remote.urls import scheme_of

if TYPE_CHECKING:
    from obstore.store import RetryConfig

#: More than for reading: a chunk that cannot be stored has to be computed again.
PATIENT: RetryConfig = {
    "max_retries": 40,
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=15)},
}
#: Times that an object is created again which the store says exists, and then has not.
MAX_CONFLICTS = 10
CONFLICT_SECONDS = 0.2
#: What is in the message of a store that has no conditional puts and says so.
NOT_IMPLEMENTED = ("NotImplemented", "501 Not Implemented")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing has it; `modified` is in seconds since 1970, by the store's clock."""

    name: str
    size: int
    modified: float


class StoredObjects:
    """The objects of a folder, by their names in it. Methods raise OutputFailed.

    `is_conditional` says that the store refuses to create an object that exists; without it,
    `create` looks whether the object exists, and only one process may write the folder.
    """

    def __init__(self, url: str):
        bucket, _, path = url.partition("://")[2].partition("/")
        self.url, self._folder = f"{url.rstrip('/')}/", path.strip("/")
        self._bucket = bucket
        self.is_conditional = True

    def names(self, prefix: str = "") -> dict[str, StoredObject]:
        """The objects whose names begin so, in the order of their names."""
        with self._errors():
            pages = self._store.list(f"{self._folder}/")
            start = len(self._folder) + 1
            found = [
                StoredObject(one["path"][start:], one["size"], one["last_modified"].timestamp())
                for page in pages
                for one in page
            ]
        objects = {one.name: one for one in found if one.name.startswith(prefix)}
        return {name: objects[name] for name in sorted(objects) if "/" not in name}

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none."""
        with self._errors(), suppress(FileNotFoundError):
            return bytes(self._store.get(self._path(name)).bytes())
        return None

    def read_end(self, name: str, count: int) -> bytes | None:
        """The last bytes of an object, `count` at most; None if there is none."""
        with self._errors(), suppress(FileNotFoundError):
            size = self._store.head(self._path(name))["size"]
            start = max(0, size - count)
            if not size:
                return b""
            return bytes(self._store.get_range(self._path(name), start=start, end=size))
        return None

    def put(self, name: str, data: bytes) -> None:
        """Store an object, in place of the one of this name."""
        with self._errors():
            self._store.put(self._path(name), data, use_multipart=False)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object; False if there is one of this name.

        A store may answer that there is one while another process still creates it.
        """
        from obstore.exceptions import AlreadyExistsError

        for _ in range(MAX_CONFLICTS):
            with self._errors(), suppress(AlreadyExistsError):
                if not self.is_conditional:
                    return self._create_if_missing(name, data)
                self._store.put(self._path(name), data, mode="create", use_multipart=False)
                return True
            if self.exists(name):
                return False
            time.sleep(CONFLICT_SECONDS)
        raise self._failed(failed(f"{name} can neither be created nor read"))

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        with self._errors(), suppress(FileNotFoundError):
            self._store.head(self._path(name))
            return True
        return False

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that do not exist are none."""
        paths = [self._path(name) for name in names]
        with self._errors():
            for start in range(0, len(paths), 1000):
                with suppress(FileNotFoundError):
                    self._store.delete(paths[start : start + 1000])

    def probe(self, name: str) -> None:
        """Find out whether the store is conditional, by an object of this name that is removed."""
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        self.put(name, b"")
        try:
            with store_errors("The store failed"):
                self._open(RETRIES).put(self._path(name), b"", mode="create", use_multipart=False)
            self.is_conditional = False
        except RemoteError as problem:
            cause = problem.__cause__
            if isinstance(cause, AlreadyExistsError):
                self.is_conditional = True
            elif isinstance(cause, NotSupportedError) or any(
                words in str(cause) for words in NOT_IMPLEMENTED
            ):
                self.is_conditional = False
            else:
                raise self._failed(problem.fault) from cause
        finally:
            self.remove([name])

    def _create_if_missing(self, name: str, data: bytes) -> bool:
        if self.exists(name):
            return False
        self.put(name, data)
        return True

    @cached_property
    def _store(self) -> Any:
        return self._open(PATIENT)

    def _open(self, retries: RetryConfig) -> Any:
        anonymous, _, bucket = self._bucket.rpartition("@")
        return MAKE[scheme_of(self.url)](bucket, anonymous=bool(anonymous), retries=retries)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise OutputFailed for what the store raises in the block."""
        try:
            with store_errors("The store failed"):
                yield
        except RemoteError as problem:
            raise self._failed(problem.fault) from problem.__cause__

    def _failed(self, fault: Fault) -> OutputFailed:
        return OutputFailed(
            f"{self.url} cannot be used: {fault.message}",
            hint="the credentials of the environment need the rights to list, read, write and "
            "delete there"
            if fault is DENIED
            else "check the address and the store; the same command resumes the run",
        )


def check_folder_url(url: str, option: str) -> None:
    """Raise UsageError for an address that is not that of a folder in a bucket."""
    bucket, _, path = url.partition("://")[2].partition("/")
    if not bucket.rpartition("@")[2] or not path.strip("/"):
        raise UsageError(
            f"{option} {url} names no folder in a bucket",
            hint=f"name one: {option} {scheme_of(url)}://bucket/rows/",
        )
