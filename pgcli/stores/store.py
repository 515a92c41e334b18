"""A folder whose files are listed, read and written, on this machine or in an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class Entry(NamedTuple):
    """A file as a listing has it; `modified` is in seconds since 1970, by the store's clock."""

    name: str
    size: int
    modified: float


class Version(NamedTuple):
    """The content of a file, when it was written by the store's clock, and the version's tag."""

    data: bytes
    modified: float
    tag: Any = None


class Store(Protocol):
    """The files of a folder, by their names in it, with `/` between a folder and a name.

    A method that fails raises OutputFailed, and OutputExists where something that is no regular
    file has the name.
    """

    url: str  #: the folder, for messages

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files whose names begin so, in no particular order.

        Those of one folder: of `open` for `open/`, and not of it for `` or `op`.
        """

    def read(self, name: str, *, last: int | None = None, size: int | None = None) -> bytes | None:
        """The content of a file, or its `last` bytes; None if there is none.

        The `size` that a listing says saves a request.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write a file; False if there is one of this name. It is absent or complete, always.

        In a store, a file of the same content counts as this one. Where a store lacks conditional
        writes, and on a file system without hard links, a file that another process creates at the
        same moment is replaced.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Write a file in place of the one of this name. Readers find the old one or the new."""

    def version(self, name: str) -> Version | None:
        """The current version of a file; None if there is none."""

    def swap(self, name: str, data: bytes, version: Version | None) -> bool:
        """Write a file in place of this version of it; False if it has another one.

        None creates it. Where a store lacks conditional writes, and on this machine, a version that
        another process writes at the same moment may be replaced too.
        """

    def folders(self) -> Sequence[str]:
        """The names of the folders directly in this one."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; those that do not exist are none."""
