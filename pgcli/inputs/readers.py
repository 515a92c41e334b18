"""Kinds of manifests: the reader of each file name ending, and what a reader is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from pgcli.records import Fault
from pgcli.stores import Reader
from pgcli.stores.files import open_regular
from pgcli.stores.urls import url_path, without_credentials

if TYPE_CHECKING:
    import pyarrow

#: Endings with the module and the name of their reader, which is imported on first use.
READERS: Mapping[str, str] = {
    ".jsonl": "lines.JSON_LINES",
    ".ndjson": "lines.JSON_LINES",
    ".csv": "lines.CSV",
    ".tsv": "lines.TSV",
    ".parquet": "parquet.PARQUET",
    ".tar": "tar.TAR",
    ".tar.gz": "tar.TAR",
    ".tgz": "tar.TAR",
}


class RemoteFile(NamedTuple):
    """A file at an address; its text has no credentials."""

    address: str
    url_reader: Reader

    def __str__(self) -> str:
        return without_credentials(self.address)

    def open(self) -> BinaryIO:
        """The file as a seekable stream. Raises RemoteError."""
        return self.url_reader.open(self.address)


#: A path, or a remote file; as text either is its name in messages.
FileLocation = str | RemoteFile


class TableFile(NamedTuple):
    """A file whose rows name images, as a reader gets it.

    `name` is that in messages. Of a local file, `size` bytes are read: it may be growing.
    """

    location: FileLocation
    name: str
    image_column: str = "image"
    size: int = sys.maxsize


class ManifestRow(NamedTuple):
    """One row: its position for messages (`line 3`, `row 3`), its values, and its fault if any.

    An image is a path or URL as text, bytes, or `{bytes, path}`; with a `span` it is those bytes
    (offset, size) of the table's file itself, which are not read here.
    """

    position: str
    values: Mapping[str, Any]
    fault: Fault | None = None
    span: tuple[int, int] | None = None


class Mark(NamedTuple):
    """Where a row begins: the offset in its file, and the number of lines or members before it."""

    offset: int = 0
    number: int = 0


START = Mark()


class Wanted(NamedTuple):
    """What is read of a file: `columns` at least, from a row's mark on.

    The first `skip` rows are counted only, and no more than `limit` after them are taken. Without
    `images` the bytes of images need not be read.
    """

    columns: frozenset[str] = frozenset()
    mark: Mark = START
    skip: int = 0
    limit: int = sys.maxsize
    images: bool = True


@dataclass(frozen=True)
class ManifestReader:
    """How a kind of manifest is read.

    `rows` yields rows with their marks, in memory that does not grow with the file, and raises
    ManifestError, with the position, for a file that cannot be read on. `columns` returns the
    columns that the file states; without it each row names its own. Where the file states its
    types and the number of its rows, `schema` (of some columns), `total` and `arrays` (the columns
    of some rows) return them; its marks are numbers of rows then, and any row can be the first.
    With `grows`, what is appended to the file are more rows.
    """

    rows: Callable[[TableFile, Wanted], Iterator[tuple[Mark, ManifestRow]]]
    columns: Callable[[TableFile], tuple[str, ...]] | None = None
    schema: Callable[[TableFile, frozenset[str]], pyarrow.Schema] | None = None
    total: Callable[[TableFile], int] | None = None
    arrays: Callable[[TableFile, Wanted], pyarrow.Table] | None = None
    grows: bool = False


def manifest_ending(name: str) -> str | None:
    """The ending of READERS that a file name has; None for a file that is not a manifest."""
    last = PurePosixPath(name).name.lower()
    return next((end for end in READERS if last.endswith(end) and last != end), None)


def load_reader(ending: str) -> ManifestReader:
    """The reader of files with this ending, one of READERS."""
    module, _, attribute = READERS[ending].partition(".")
    reader: ManifestReader = getattr(import_module(f"pgcli.inputs.{module}"), attribute)
    return reader


def open_file(location: FileLocation) -> BinaryIO:
    """The file, opened for reading, seekable. Raises OSError."""
    return location.open() if isinstance(location, RemoteFile) else open_regular(location)


def path_of(location: FileLocation) -> str:
    """The path, or the path in the URL; its ending names the format."""
    return url_path(location.address) if isinstance(location, RemoteFile) else location


def error_text(problem: Any) -> str:
    """The text of an OSError, the system's if it has one."""
    return problem.strerror or str(problem)
