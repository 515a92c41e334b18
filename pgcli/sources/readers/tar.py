"""The samples of a tar archive as rows: streamed, and nothing of it ever extracted to a disk."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

from pgcli.errors import ManifestError
from pgcli.records import MAX_IMAGE_BYTES, Fault
from pgcli.sources.manifest_file import Where, kind, opened
from pgcli.sources.readers.lines import LONGEST_LINE, TOO_LONG, spelled
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow
from pgcli.sources.source_options import IMAGE_ENDINGS

BLOCK = 512
#: Headers may name lengths of their own, and tarfile would read as much at once.
MOST_AT_ONCE = 16 * 2**20
#: Pictures do not shrink; what unpacks to more than this is a bomb.
MOST_TIMES = 200

_OUTSIDE = Fault("path_not_allowed", "The member's name leads outside the archive.")
_NO_FILE = Fault("not_a_regular_file", "The member is a link or a device, not a file.")
_TOO_LARGE = Fault("too_large", f"The member is larger than {MAX_IMAGE_BYTES} bytes.")
_EMPTY = Fault("not_an_image", "The member is empty.")
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, zlib.error)


def rows(manifest: Manifest, wanted: Collection[str]) -> Iterator[ManifestRow]:
    """A row for each sample with a picture: members in a row whose names agree up to a dot.

    Its columns are those of its `.json` member, `txt` what its `.txt` member says, and under
    the column of images the picture as `{bytes, path}`; what is not wanted is there and not read. A
    picture or a text that cannot be had is a fault of its row. Raises ManifestError for an archive
    that is cut or damaged.
    """
    where, name, image_column = manifest
    sample = TarSample("", name, image_column)
    with archive_of(where, name) as (archive, file):
        number = 0
        while (member := following(archive, name, number)) is not None:
            number += 1
            key, ending = split(member.name)
            if member.isdir() or key is None:
                continue
            if key != sample.key:
                yield from sample.row()
                sample = TarSample(key, name, image_column)
            sample.add(archive, member, ending, wanted)
        if file.last.strip(b"\0"):
            raise damaged(f"{name}, behind member {number}: the archive is damaged")
    yield from sample.row()


class TarSample:
    """Members that belong together, as they come."""

    def __init__(self, key: str, archive: str, image_column: str):
        self.key = key
        self._archive, self._image_column = archive, image_column
        self._values: dict[str, Any] = {}
        self._image: dict[str, Any] | None = None
        self._fault: Fault | None = None
        self._wrong: Fault | None = None

    def add(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        ending: str,
        wanted: Collection[str],
    ) -> None:
        """Take what the member brings; of pictures the first. What is not wanted is not read."""
        if ending in IMAGE_ENDINGS and self._image is None:
            self._image = {"path": f"{self._archive}/{member.name}", "bytes": None}
            self._fault = fault_of(member)
            if self._image_column in wanted and self._fault is None:
                self._image["bytes"] = content(archive, member, MAX_IMAGE_BYTES)
        elif ending in (".json", ".txt") and member.isreg():
            own = {"txt"} if ending == ".txt" else set(wanted) - {self._image_column, "txt"}
            if own.isdisjoint(wanted):
                self._values |= dict.fromkeys(own)
            elif member.size > LONGEST_LINE:
                self._wrong = Fault("too_large", f"The sample's {ending} {TOO_LONG}.")
            else:
                self._read(content(archive, member, LONGEST_LINE), ending)

    def _read(self, text: bytes, ending: str) -> None:
        """Take the columns that a text brings; JSON that is no object brings none."""
        try:
            found = spelled(text, takes_nan=True) if ending == ".json" else {"txt": text.decode()}
        except UnicodeDecodeError:
            self._wrong = Fault("decode_failed", f"The sample's {ending} is not UTF-8.")
        except ValueError as problem:
            why = str(problem).removeprefix("it ")
            why = why if why != str(problem) else f"cannot be read: {why}"
            self._wrong = Fault("decode_failed", f"The sample's {ending} {why}.")
        else:
            self._values |= found if isinstance(found, dict) else {}

    def row(self) -> Iterator[ManifestRow]:
        """The sample's row, if it has a picture."""
        if self._image is not None:
            values = {**self._values, self._image_column: self._image}
            yield ManifestRow(f"sample {self.key}", values, self._fault or self._wrong)


def split(name: str) -> tuple[str | None, str]:
    """A member's key, up to the first dot of its last part, and its ending; no key if hidden."""
    folder, slash, last = name.rpartition("/")
    stem, dot, rest = last.partition(".")
    if not stem or any(
        part.startswith(".") and part not in (".", "..") for part in name.split("/")
    ):
        return None, ""
    return f"{folder}{slash}{stem}", f".{rest.rpartition('.')[2].lower()}" if dot else ""


def fault_of(member: tarfile.TarInfo) -> Fault | None:
    """What is wrong with a member as a picture, by its header alone."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return _OUTSIDE
    if not member.isreg() or member.issparse():
        return _NO_FILE
    if member.size > MAX_IMAGE_BYTES:
        return _TOO_LARGE
    return None if member.size else _EMPTY


def content(archive: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    """A member's bytes. Raises OSError and TarError."""
    file = archive.extractfile(member)
    assert file is not None
    pieces: list[bytes] = []
    while len(pieces) * 2**20 < most and (piece := file.read(2**20)):
        pieces.append(piece)
    return b"".join(pieces)


def following(archive: tarfile.TarFile, name: str, number: int) -> tarfile.TarInfo | None:
    """The next member. Raises ManifestError."""
    try:
        member = archive.next()
    except _BROKEN as problem:
        raise damaged(f"{name}, behind member {number}: {problem}") from problem
    archive.members = []  # type: ignore[attr-defined]  # which would hold a million otherwise
    return member


@contextmanager
def archive_of(path: Where, name: str) -> Iterator[tuple[tarfile.TarFile, BoundedFile]]:
    """The archive, and the file that it reads. Raises ManifestError where it is none."""
    with ExitStack() as stack:
        try:
            raw: BinaryIO = stack.enter_context(opened(path))
            file: Any = raw
            if kind(path) != ".tar":
                file = stack.enter_context(gzip.GzipFile(fileobj=raw))
            bounded = BoundedFile(file, raw)
            archive = stack.enter_context(
                tarfile.open(fileobj=bounded, mode="r:", errorlevel=0)  # type: ignore[call-overload]
            )
        except _BROKEN as problem:
            raise damaged(f"{name} is no readable tar archive: {problem}") from problem
        try:
            yield archive, bounded
        except _BROKEN as problem:
            raise damaged(f"{name}: {problem}") from problem


def damaged(what: str) -> ManifestError:
    """The refusal of an archive that cannot be read to its end."""
    return ManifestError(
        what,
        hint="copy or download it again, or leave it out; `tar -tf FILE` lists what of it is whole",
    )


class BoundedFile:
    """A file that reads little at once, and not what unpacks to many times its size.

    `last` is what was read last. Only forward seeks are cheap.
    """

    def __init__(self, file: BinaryIO, raw: BinaryIO):
        self._file, self._raw = file, raw
        self.last = b""

    def read(self, size: int) -> bytes:
        """So many bytes, or those that are left. Raises tarfile.ReadError."""
        if size > MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self._file.read(size)
        self._insist()
        return self.last

    def seek(self, place: int, whence: int = 0) -> int:
        """Go there, through what is between in a compressed file."""
        if whence == 0:
            while place - self._file.tell() > MOST_AT_ONCE and self._file is not self._raw:
                self._file.seek(self._file.tell() + MOST_AT_ONCE)
                self._insist()
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def _insist(self) -> None:
        unpacked = self._file.tell()
        if unpacked > MOST_AT_ONCE and unpacked > MOST_TIMES * max(1, self._raw.tell()):
            raise tarfile.ReadError(f"it unpacks to more than {MOST_TIMES} times its size")


TAR = ManifestReader(rows, tolerates_bad_rows=True)
