"""What a pass through all rows of a table finds, stored so that later processes need no pass."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Self

from pgcli.remote import RemoteFile
from pgcli.sources.manifest_file import FileLocation, open_file
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers.bookmarks import Bookmarks
from pgcli.sources.seen_ids import RepeatedIds

#: Increased when scans find something else.
VERSION = 1
#: A pass through fewer rows of a local table takes less than 0.1 s.
MIN_STORED_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class TableScan:
    """The number of rows, the columns that they name, repeated ids, and where rows begin."""

    total: int
    columns: tuple[str, ...]
    repeated: RepeatedIds
    bookmarks: Bookmarks

    def values(self, key: str) -> dict[str, Any]:
        """The scan of a table that has this key, as values of JSON."""
        return {
            "key": key,
            "total": self.total,
            "columns": list(self.columns),
            "repeated": list(map(list, self.repeated)),
            "bookmarks": list(map(list, self.bookmarks.arrays)),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any], key: str) -> Self | None:
        """The scan, if it is of a table that has this key; None for anything else."""
        try:
            if values["key"] != key:
                return None
            repeated = RepeatedIds(*(array("Q", numbers) for numbers in values["repeated"]))
            bookmarks = Bookmarks(*(array("Q", numbers) for numbers in values["bookmarks"]))
            return cls(int(values["total"]), tuple(values["columns"]), repeated, bookmarks)
        except (ValueError, TypeError, KeyError, OverflowError):
            return None


def scan_name(location: FileLocation) -> str:
    """The name of the stored scan of a table."""
    return f"scan-{sha256(str(location).encode(errors='surrogatepass')).hexdigest()[:16]}"


def scan_key(location: FileLocation, status: bytes, options: ReadOptions) -> str:
    """What changes with the table and with the options that decide what a scan finds.

    A local table is known by its status, one at a URL by its size. Raises OSError.
    """
    identity = status.hex()
    if isinstance(location, RemoteFile):
        with open_file(location) as file:
            identity = str(file.seek(0, os.SEEK_END))
    plain = replace(options, url_reader=None, kept=())
    text = json.dumps([VERSION, str(location), identity, repr(plain)])
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
