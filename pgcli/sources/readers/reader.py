"""The interface of manifest readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from pgcli.records import Fault
from pgcli.sources.manifest_file import FileLocation
from pgcli.sources.readers.bookmarks import Bookmarks
from pgcli.sources.source_part import RowSlice

if TYPE_CHECKING:
    import pyarrow


class Manifest(NamedTuple):
    """A file whose rows name images: its location, its name in messages, and the image column.

    A pass through all rows fills the `bookmarks`, from which rows further on are read.
    """

    location: FileLocation
    name: str
    image_column: str
    bookmarks: Bookmarks


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
    becomes an error row. `rows_between` reads some rows without reading those before them; without
    it they are read and dropped. `types` returns the types of columns, where the file states them.
    """

    rows: Callable[[Manifest, Collection[str]], Iterator[ManifestRow]]
    columns: Callable[[Manifest], tuple[str, ...]] | None = None
    tolerates_bad_rows: bool = False
    rows_between: Callable[[Manifest, Collection[str], RowSlice], Iterator[ManifestRow]] | None = (
        None
    )
    types: Callable[[Manifest, Collection[str]], Mapping[str, pyarrow.DataType]] | None = None

    def read(
        self, manifest: Manifest, wanted: Collection[str], part: RowSlice
    ) -> Iterator[ManifestRow]:
        """The rows of a part of the file."""
        if self.rows_between is not None:
            return self.rows_between(manifest, wanted, part)
        return islice(self.rows(manifest, wanted), part.start, part.stop)
