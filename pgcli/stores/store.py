"""A folder whose files are listed, read and written, on this machine or in an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class Entry(NamedTuple):
    """A file in a listing; `modified` is in seconds since 1970, by the store's clock."""

    name: str
    size: int
    modified: float


class Version(NamedTuple):
    """The content of a file, its time of writing by the store's clock, and the version's tag."""

    data: bytes
    modified: float
    tag: Any = None


class Store(Protocol):
    """The files of a folder, by their names in it, with `/` between a subfolder and a name.

    A method that fails raises OutputFailed, or OutputExists if something other than a regular
    file has the name.
    """

    url: str  #: the folder, for messages

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files with this prefix, in no particular order.

        Only files directly in one folder: `open/` lists the folder `open`, `op` does not.
        """

    def read(self, name: str, *, last: int | None = None, size: int | None = None) -> bytes | None:
        """The content of a file, or its `last` bytes; None if it does not exist.

        Passing the `size` from a listing saves a request.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write a file; False if the name is taken. Readers never see a part of it.

        In a store, an existing file with the same content counts as written. Without conditional
        writes or hard links, a file that another process creates at the same moment is replaced.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Replace or create the file. Readers see the old content or the new."""

    def version(self, name: str) -> Version | None:
        """The current version of a file; None if it does not exist."""

    def swap(self, name: str, data: bytes, version: Version | None) -> bool:
        """Replace this version of a file; False if the current version differs.

        With None it must not exist. Where a store lacks conditional writes, and on this machine, a
        version that another process writes at the same moment may be replaced too.
        """

    def folders(self) -> Sequence[str]:
        """The names of the folders directly in this one."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
