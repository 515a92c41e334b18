"""Folders to write and files to read, on this machine and at URLs.

`folders` keeps a folder of this machine without opening links in it, `objects` one in an object
store, and `writing` checks targets and names files once they are complete. `files` opens regular
files only. `reader` reads URLs, of `web` servers and the Hub and of `objects`; the text of URLs,
their faults and the waits for servers are in `urls`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pgcli.stores.folders import Entry, Held, LocalStore, Version
from pgcli.stores.reader import Reader, make_reader
from pgcli.stores.urls import RemoteError, is_in_object_store

if TYPE_CHECKING:
    from pgcli.stores.objects import ObjectStore

__all__ = [
    "Entry",
    "Held",
    "LocalStore",
    "Reader",
    "RemoteError",
    "Store",
    "Version",
    "make_reader",
    "open_folder",
]

Store: TypeAlias = "LocalStore | ObjectStore"


def open_folder(name: str, *, create: bool = False, follow: bool = False) -> Store:
    """The folder at a path or a URL; in an object store, it exists once it has a file.

    On this machine it is created with `create`, and may be a link with `follow`. Raises
    FileNotFoundError, OutputExists and OutputFailed.
    """
    if is_in_object_store(name):
        from pgcli.stores.objects import ObjectStore  # slow to import

        return ObjectStore(name)
    return LocalStore(Path(name), create=create, follow=follow)
