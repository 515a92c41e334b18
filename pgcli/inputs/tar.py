"""Reads WebDataset archives: each sample is a row. Nothing is extracted to disk.

An unreadable image or text makes a failed row.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, BinaryIO

from pgcli.errors import ManifestError
from pgcli.inputs.readers import START, ManifestRow, Mark, refuse_lfs_pointer
from pgcli.inputs.samples import Member, SampleReader, SeveralImages, member_of
from pgcli.inputs.tables import Table

#: Headers can state any length, and tarfile would read it at once.
MAX_READ_BYTES = 16 * 2**20
#: Images hardly compress; a higher ratio is a decompression bomb.
MAX_RATIO = 200
BLOCK_BYTES = 2**16
APPENDED = "other data follow the end of the archive"

_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, zlib.error)


class TarTable(Table):
    """An archive as a table of samples."""

    has_names = True
    samples: SampleReader  # of the last `read`

    @property
    def _is_compressed(self) -> bool:
        return not self.file.path.lower().endswith(".tar")

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """A row for each sample with an image; in a local file that is not compressed, its span.

        Raises ManifestError for a truncated or damaged archive.
        """
        file, number, is_compressed = self.file, mark.number, self._is_compressed
        by_last_dot = bool(self.record.by_last_dot)
        try:
            with ExitStack() as stack:
                raw = stack.enter_context(file.open())
                unpacked: Any = (
                    stack.enter_context(gzip.GzipFile(fileobj=raw)) if is_compressed else raw
                )
                bounded: Any = BoundedFile(unpacked, raw)
                archive: Any = stack.enter_context(
                    tarfile.open(fileobj=bounded, mode="r:", errorlevel=0)
                )
                if mark.offset:
                    archive.firstmember, archive.offset = None, mark.offset

                def members() -> Iterator[Member]:
                    nonlocal number
                    while (info := archive.next()) is not None:
                        archive.members = []  # it would keep a million of them
                        number += 1
                        if (member := member_of(number, info, by_last_dot=by_last_dot)) is not None:
                            yield member
                    if bounded.last.strip(b"\0"):
                        raise tarfile.ReadError("the archive is damaged")
                    while following := bounded.read(BLOCK_BYTES):
                        if following.strip(b"\0"):
                            raise tarfile.ReadError(APPENDED)

                self.samples = SampleReader(
                    file.name,
                    columns,
                    self.image_column,
                    partial(read_member, archive),
                    by_last_dot=by_last_dot,
                    has_spans=not is_compressed and file.url_reader is None,
                    images=images,
                )
                yield from self.samples.rows(members())
        except FileNotFoundError:
            raise ManifestError(
                f"{file.name} does not exist", hint="check the spelling and the folder"
            ) from None
        except _BROKEN as problem:
            raise self._unreadable(problem, number) from problem

    def _unreadable(self, problem: Exception, number: int) -> ManifestError:
        """The error for an archive that is unreadable behind the member of this number."""
        refuse_lfs_pointer(self.file)
        after = f"is truncated or damaged after member {number}"
        kind = "a .tar.gz archive" if self._is_compressed else "an uncompressed .tar archive"
        place = f" {after if number else f'is not {kind}'}"
        hint = "copy or download it again, or omit it; `tar -tf FILE` lists its complete members"
        if str(problem) == APPENDED:
            hint = "`tar --concatenate` joins archives, `cat` does not"
        return ManifestError(f"{self.file.name}{place}: {problem}", hint=hint)

    def scan(self, mark: Mark = START) -> array[int]:
        """See `Table`. The record also counts skipped members, and says where keys end."""
        try:
            hashes = super().scan(mark)
        except SeveralImages:
            self.record = self.record._replace(by_last_dot=True)
            hashes = super().scan(mark)
        self.record = self.record._replace(skipped=tuple(self.samples.skipped.items()))
        return hashes


class BoundedFile:
    """A file that refuses large reads, and compressed data that expands too much.

    `last` is the data of the last read. Only forward seeks are cheap.
    """

    def __init__(self, file: BinaryIO, raw: BinaryIO):
        self._file, self._raw, self._is_unpacked = file, raw, file is not raw
        self.last = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes. Raises tarfile.ReadError."""
        if size > MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self._file.read(size)
        if self._is_unpacked:
            self._check_ratio()
        return self.last

    def seek(self, position: int, whence: int = 0) -> int:
        """Seek; in a compressed file, read up to the position."""
        if whence == 0 and self._is_unpacked:
            while position - self._file.tell() > MAX_READ_BYTES:
                self._file.seek(self._file.tell() + MAX_READ_BYTES)
                self._check_ratio()
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()

    def _check_ratio(self) -> None:
        unpacked = self._file.tell()
        if unpacked > MAX_READ_BYTES and unpacked > MAX_RATIO * max(1, self._raw.tell()):
            raise tarfile.ReadError(f"it unpacks to more than {MAX_RATIO} times its size")


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, max_bytes: int) -> bytes:
    """A member's bytes, about `max_bytes` at most. Raises OSError and TarError."""
    file = archive.extractfile(member)
    assert file is not None
    pieces: list[bytes] = []
    while len(pieces) * 2**20 < max_bytes and (piece := file.read(2**20)):
        pieces.append(piece)
    return b"".join(pieces)
