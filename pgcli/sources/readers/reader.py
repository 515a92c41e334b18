"""What reads a kind of file with rows: a function, and what it is given and gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pgcli.records import Fault
from pgcli.sources.manifest_file import Where


class Manifest(NamedTuple):
    """A file whose rows name pictures: where it is, its name, and the column of the pictures."""

    where: Where
    name: str
    image_column: str


class ManifestRow(NamedTuple):
    """One row, and where it stands for messages: `line 3`, `row 3`; what its picture lacks."""

    place: str
    values: Mapping[str, Any]
    fault: Fault | None = None


@dataclass(frozen=True)
class ManifestReader:
    """How a kind of file is read.

    `rows` streams the file anew at each call, with the wanted columns at least, in memory that its
    size does not change; it raises ManifestError, naming the place, for what is broken. An image
    is a path or an address as text, bytes, or `{bytes, path}`. `columns` are those that the file's
    head names; without it each row names its own. Where a row `bears` what is wrong with it, that
    costs the row and not the run.
    """

    rows: Callable[[Manifest, Collection[str]], Iterator[ManifestRow]]
    columns: Callable[[Manifest], tuple[str, ...]] | None = None
    tolerates_bad_rows: bool = False
