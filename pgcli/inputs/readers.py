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
from pgcli.stores.urls import url_path

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


class InputFile(NamedTuple):
    """A file by its path, or by its address, which `url_reader` reads.

    `name` is that in messages. Of a local file, `size` bytes are read: it may be growing.
    """

    location: str
    name: str
    url_reader: Reader | None = None
    size: int = sys.maxsize

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> str:
        """The path, or the path in the address; its ending names the format."""
        return self.location if self.url_reader is None else url_path(self.location)

    def open(self) -> BinaryIO:
        """The file, opened for reading, seekable. Raises OSError."""
        if self.url_reader is None:
            return open_regular(self.location)
        return self.url_reader.open(self.location)


class ManifestRow(NamedTuple):
    """One row: its position for messages (`m.jsonl, line 3`), its values, and its fault if any.

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

    The first `skip` rows are counted only. Without `images` the bytes of images need not be read.
    """

    columns: frozenset[str] = frozenset()
    image_column: str = "image"
    mark: Mark = START
    skip: int = 0
    images: bool = True


@dataclass(frozen=True)
class ManifestReader:
    """How a kind of manifest is read.

    `rows` yields rows with their marks, in memory that does not grow with the file, and raises
    ManifestError, with the position, for a file that cannot be read on. `columns` returns the
    columns that the file states; without it each row names its own. With `grows`, what is appended
    to the file are more rows. Of a file that states its types and the number of its rows, `schema`
    returns the types of those wanted columns that it has, `total` the number of its rows, and
    `arrays` the columns of some rows, from a number to before another; its marks are numbers of
    rows, and any row can be the first.
    """

    rows: Callable[[InputFile, Wanted], Iterator[tuple[Mark, ManifestRow]]]
    columns: Callable[[InputFile], tuple[str, ...]] | None = None
    schema: Callable[[InputFile, Wanted], pyarrow.Schema] | None = None
    total: Callable[[InputFile], int] | None = None
    arrays: Callable[[InputFile, Wanted, int, int], pyarrow.Table] | None = None
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


def error_text(problem: Any) -> str:
    """The text of an OSError, the system's if it has one."""
    return problem.strerror or str(problem)
