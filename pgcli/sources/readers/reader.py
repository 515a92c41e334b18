"""The interface of manifest readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pgcli.records import Fault
from pgcli.sources.manifest_file import FileLocation


class Manifest(NamedTuple):
    """A file whose rows name images: its location, its name in messages, and the image column."""

    location: FileLocation
    name: str
    image_column: str


class ManifestRow(NamedTuple):
    """One row: its position for messages (`line 3`, `row 3`), its values, and its fault if any."""

    position: str
    values: Mapping[str, Any]
    fault: Fault | None = None


@dataclass(frozen=True)
class ManifestReader:
    """How a format is read.

    `rows` reads the file from the start at each call, with the wanted columns at least, in memory
    that does not grow with the file; it raises ManifestError, with the position, for broken input.
    An image is a path or URL as text, bytes, or `{bytes, path}`. `columns` returns the columns that
    the file's header names; without it each row names its own. With `tolerates_bad_rows` a bad row
    becomes an error row.
    """

    rows: Callable[[Manifest, Collection[str]], Iterator[ManifestRow]]
    columns: Callable[[Manifest], tuple[str, ...]] | None = None
    tolerates_bad_rows: bool = False
