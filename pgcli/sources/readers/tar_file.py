"""Opens tar archives for streaming, protected against decompression bombs."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

from pgcli.errors import ManifestError
from pgcli.sources.manifest_file import FileLocation, open_file, path_of

#: Headers may state lengths of their own, and tarfile would read as much at once.
MAX_READ_BYTES = 16 * 2**20
#: Images hardly compress; what unpacks to more than this is a bomb.
MAX_RATIO = 200

_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, zlib.error)


class BoundedFile:
    """A file that refuses large reads, and data that unpacks to many times its size.

    `last` is the data of the last read. Only forward seeks are cheap.
    """

    def __init__(self, file: BinaryIO, raw: BinaryIO):
        self._file, self._raw = file, raw
        self.last = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes. Raises tarfile.ReadError."""
        if size > MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self._file.read(size)
        self._check_ratio()
        return self.last

    def seek(self, position: int, whence: int = 0) -> int:
        """Seek, reading what lies between in a compressed file."""
        if whence == 0:
            while position - self._file.tell() > MAX_READ_BYTES and self._file is not self._raw:
                self._file.seek(self._file.tell() + MAX_READ_BYTES)
                self._check_ratio()
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()

    def _check_ratio(self) -> None:
        unpacked = self._file.tell()
        if unpacked > MAX_READ_BYTES and unpacked > MAX_RATIO * max(1, self._raw.tell()):
            raise tarfile.ReadError(f"it unpacks to more than {MAX_RATIO} times its size")


@contextmanager
def open_archive(
    location: FileLocation, name: str, offset: int = 0
) -> Iterator[tuple[tarfile.TarFile, BoundedFile]]:
    """The archive from a member's offset on, and the file that it reads. Raises ManifestError."""
    with ExitStack() as stack:
        try:
            raw: BinaryIO = stack.enter_context(open_file(location))
            file: Any = raw
            if not path_of(location).lower().endswith(".tar"):
                file = stack.enter_context(gzip.GzipFile(fileobj=raw))
            bounded = BoundedFile(file, raw)
            archive = stack.enter_context(
                tarfile.open(fileobj=bounded, mode="r:", errorlevel=0)  # type: ignore[call-overload]
            )
            if offset:
                archive.firstmember, archive.offset = None, offset
        except _BROKEN as problem:
            raise damaged_archive(f"{name} is not a readable tar archive: {problem}") from problem
        try:
            yield archive, bounded
        except _BROKEN as problem:
            raise damaged_archive(f"{name}: {problem}") from problem


def next_member(archive: tarfile.TarFile, name: str, number: int) -> tarfile.TarInfo | None:
    """The next member. Raises ManifestError."""
    try:
        member = archive.next()
    except _BROKEN as problem:
        raise damaged_archive(f"{name}, behind member {number}: {problem}") from problem
    archive.members = []  # type: ignore[attr-defined]  # it would keep a million of them
    return member


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, max_bytes: int) -> bytes:
    """A member's bytes, about `max_bytes` at most. Raises OSError and TarError."""
    file = archive.extractfile(member)
    assert file is not None
    pieces: list[bytes] = []
    while len(pieces) * 2**20 < max_bytes and (piece := file.read(2**20)):
        pieces.append(piece)
    return b"".join(pieces)


def damaged_archive(message: str) -> ManifestError:
    """The error for an archive that cannot be read to its end."""
    return ManifestError(
        message,
        hint="copy or download it again, or leave it out; `tar -tf FILE` lists its whole members",
    )
