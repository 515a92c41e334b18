"""Kinds of files by their endings: images, and tables with a class for each kind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from pgcli import registry
from pgcli.errors import ManifestError
from pgcli.records import Fault
from pgcli.stores import Reader
from pgcli.stores.files import open_regular
from pgcli.stores.urls import url_path
from pgcli.text import LFS_HEAD_BYTES, LFS_HINT, LFS_MESSAGE, is_lfs_pointer

IMAGE_ENDINGS = frozenset(
    "." + ending
    for ending in "jpg jpeg jpe jfif png webp gif bmp tif tiff avif ppm pgm pbm pnm".split()
)
#: Keys of counts: files without an ending, with an unusual ending, and with a hidden name.
NO_ENDING, OTHER_ENDING, UNDERSCORE = "(none)", "(other)", "(_)"
#: Longer endings are counted together, so that odd file names do not fill the summary.
MAX_ENDING_LENGTH = 12
UNNAMED = {
    NO_ENDING: "without an extension",
    OTHER_ENDING: "with other endings",
    UNDERSCORE: "beginning with _",
}
MAX_LISTED_ENDINGS = 5
HEIC = {".heic", ".heif"}


class InputFile(NamedTuple):
    """A file by its path, or by its URL, which `url_reader` reads.

    `name` is that in messages. Of a local file, `size` bytes are read: others may append to it. A
    relative path is one of the folder `base`, without one of the current folder.
    """

    location: str
    name: str
    url_reader: Reader | None = None
    size: int = sys.maxsize
    base: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> str:
        """The path, or the path in the URL; its ending names the format."""
        return self.location if self.url_reader is None else url_path(self.location)

    @property
    def local_path(self) -> str:
        """The path at which a local file is opened."""
        return os.path.join(self.base, self.location)  # noqa: PTH118

    def open(self) -> BinaryIO:
        """The file, opened for reading, seekable. Raises OSError."""
        if self.url_reader is None:
            return open_regular(self.local_path)
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


def manifest_ending(name: str) -> str | None:
    """The ending of manifests that a file name has; None for a file that is not a manifest."""
    last = PurePosixPath(name).name.lower()
    endings = registry.names("manifests")
    return next((end for end in endings if last.endswith(end) and last != end), None)


def refuse_lfs_pointer(file: InputFile) -> None:
    """Raise ManifestError if the file is a pointer of Git LFS."""
    with suppress(OSError), file.open() as opened:
        if is_lfs_pointer(opened.read(LFS_HEAD_BYTES)):
            raise ManifestError(f"{file.name} {LFS_MESSAGE}", hint=LFS_HINT)


def error_text(problem: Any) -> str:
    """The text of an OSError, the system's if it has one."""
    return problem.strerror or str(problem)


def ending(name: str) -> str:
    """The lower-case ending with its dot, NO_ENDING, or OTHER_ENDING for an unusual one."""
    last = name.rstrip("/").rpartition("/")[2]
    dot = last.rfind(".")
    if not 0 < dot < len(last) - 1:
        return NO_ENDING
    suffix = last[dot:].lower()
    return suffix if len(suffix) <= MAX_ENDING_LENGTH and suffix.isascii() else OTHER_ENDING


def supported_files_hint() -> str:
    """The supported endings."""
    return f"{images_hint()}; manifests and archives in {_listed(registry.names('manifests'))}"


def no_input_hint(ignored: Mapping[str, int]) -> str:
    """The supported endings, and the skipped files, most frequent first."""
    hint = f"{images_hint()}; folders are searched recursively"
    if ignored:
        hint += f"; skipped: {', '.join(describe_endings(ignored))}"
    if HEIC & ignored.keys():
        hint += "; convert HEIC to JPEG first: magick mogrify -format jpg *.heic"
    if UNDERSCORE in ignored:
        hint += "; names that begin with _ are read if a pattern names them: <--include=> '_*'"
    if not ignored.keys().isdisjoint(registry.names("manifests")):
        hint += "; to read a manifest, name the file itself"
    return hint


def describe_endings(counts: Mapping[str, int]) -> list[str]:
    """File counts by ending, largest first; past MAX_LISTED_ENDINGS the rest are one entry."""
    by_count = sorted(counts.items(), key=lambda kind: (-kind[1], kind[0]))
    texts = [f"{count:,} {UNNAMED.get(kind, kind)}" for kind, count in by_count]
    remaining = len(texts) - MAX_LISTED_ENDINGS
    if remaining > 0:
        texts[MAX_LISTED_ENDINGS:] = [f"{remaining} more extension{'s' * (remaining > 1)}"]
    return texts


def images_hint() -> str:
    """The endings of images."""
    return f"images end in {_listed(IMAGE_ENDINGS)}"


def _listed(endings: Iterable[str]) -> str:
    return ", ".join(sorted(endings))
