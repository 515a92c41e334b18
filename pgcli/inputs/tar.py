"""Reads WebDataset archives: each sample is a row. Nothing is extracted to disk.

As in WebDataset, the key of a member is its path up to the first dot of the file name; consecutive
members with the same key form a sample, which has one image. If the members of an archive had
several, all of its keys end before the last dot: `frame.0000.png` and `frame.0001.png` are two
samples. An unreadable image or text makes a failed row.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from typing import Any, BinaryIO

from pgcli.errors import ManifestError
from pgcli.inputs.lines import LINE_TOO_LONG, MAX_LINE_BYTES, parse_json
from pgcli.inputs.options import (
    IMAGE_ENDINGS,
    OTHER_ENDING,
    START,
    ManifestRow,
    Mark,
    ending,
    refuse_lfs_pointer,
)
from pgcli.inputs.paths import display_name
from pgcli.inputs.tables import Table
from pgcli.records import MAX_IMAGE_BYTES, Fault
from pgcli.text import LFS_MESSAGE, decode_text, is_lfs_pointer

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
    def is_compressed(self) -> bool:
        """Whether the archive is compressed, by its name."""
        return not self.file.path.lower().endswith(".tar")

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """A row for each sample with an image; in a local file that is not compressed, its span.

        Raises ManifestError for a truncated or damaged archive.
        """
        file, number = self.file, mark.number
        by_last_dot = bool(self.record.by_last_dot)
        try:
            with ExitStack() as stack:
                raw = stack.enter_context(file.open())
                unpacked: Any = raw
                if self.is_compressed:
                    unpacked = stack.enter_context(gzip.GzipFile(fileobj=raw))
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

                self.samples = SampleReader(self, archive, columns, images=images)
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
        kind = "a .tar.gz archive" if self.is_compressed else "an uncompressed .tar archive"
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


#: Endings of texts. Each text is a column; the keys of a `.json` member are columns.
TEXT_ENDINGS = frozenset({".txt", ".text", ".caption", ".cls", ".json"})
#: Limits of a sample in memory.
MAX_MEMBERS, MAX_BYTES = 1000, 64 * 2**20
#: Kinds of skipped members that are counted apart.
MAX_KINDS = 1000
#: Behind the ending of a text in `SampleReader.skipped`.
WITHOUT_IMAGE = " without an image"

ID = "id"
#: A hidden folder in a path.
_HIDDEN = re.compile(r"(?:^|/)\.(?!\.?(?:/|\Z))")
_OUTSIDE = Fault("path_not_allowed", "The member's name leads outside the archive.")
_NOT_A_FILE = Fault("not_a_regular_file", "The member is a link or a device, not a file.")
_TOO_LARGE = Fault("too_large", f"The member is larger than {MAX_IMAGE_BYTES} bytes.")
_EMPTY = Fault("not_an_image", "The member is empty.")
_TOO_MANY = Fault(
    "too_large",
    f"The sample has more than {MAX_MEMBERS:,} members, or {MAX_BYTES >> 20} MiB of texts.",
)


class SeveralImages(Exception):
    """A key up to the first dot has several images."""


class Member:
    """A member of an archive by its number, from 1; its name is `key`, a dot, and `column`."""

    __slots__ = ("column", "data", "info", "is_image", "is_text", "key", "number")

    def __init__(self, number: int, info: tarfile.TarInfo, key: str, column: str):
        self.number, self.info, self.key = number, info, key
        self.column = column.lower().encode("utf-8", "replace").decode()
        kind = f".{self.column.rpartition('.')[2]}"
        self.is_image = kind in IMAGE_ENDINGS
        self.is_text = kind in TEXT_ENDINGS and info.isreg()
        self.data: bytes | None = None

    def fault(self) -> Fault | None:
        """Why the member cannot be an image, by its header."""
        info = self.info
        if info.name.startswith("/") or ".." in info.name.split("/"):
            return _OUTSIDE
        if not info.isreg() or info.issparse():
            return _NOT_A_FILE
        if info.size > MAX_IMAGE_BYTES:
            return _TOO_LARGE
        return None if info.size else _EMPTY


def member_of(number: int, info: tarfile.TarInfo, *, by_last_dot: bool) -> Member | None:
    """The member of a header; None for a folder and for a hidden file."""
    folder, slash, last = info.name.removeprefix("./").rpartition("/")
    if info.isdir() or last[:1] in ("", ".") or _HIDDEN.search(folder):
        return None
    dot = last.rfind(".") if by_last_dot else last.find(".")
    dot = len(last) if dot < 0 else dot
    return Member(number, info, f"{folder}{slash}{last[:dot]}", last[dot + 1 :])


class SampleReader:
    """Reads samples as rows with at least these columns, and counts skipped members by ending.

    The image column selects the image if it ends like one (`seg.png`). In a local archive that is
    not compressed, a row has the offset of its image instead of the bytes; without `images`,
    neither.
    """

    def __init__(
        self, table: TarTable, archive: tarfile.TarFile, columns: frozenset[str], *, images: bool
    ):
        self.name, self.image_column, self._archive = table.name, table.image_column, archive
        self.columns, self.images, self.skipped = columns, images, Counter[str]()
        self.by_last_dot = bool(table.record.by_last_dot)
        self.has_spans = not table.is_compressed and table.file.url_reader is None
        name = self.image_column.lower().removeprefix(".")
        self._chosen = name if f".{name.rpartition('.')[2]}" in IMAGE_ENDINGS else None
        self._json_columns = self.columns - {self.image_column, "txt"}
        self._text_endings = tuple(f".{column}" for column in self.columns)

    def rows(self, members: Iterable[Member]) -> Iterator[tuple[Mark, ManifestRow]]:
        """The rows of all samples with an image.

        Raises SeveralImages if a key has several, unless keys end before the last dot.
        """
        for _, group in groupby(members, lambda member: member.key):
            sample, size, is_full = list[Member](), 0, False
            for member in group:
                if is_full := len(sample) == MAX_MEMBERS or size > MAX_BYTES:
                    continue
                self._load(member, has_image=any(m.data and m.is_image for m in sample))
                sample.append(member)
                size += len(member.data or b"") if member.is_text else 0
            first = sample[0]
            if (row := self._row(sample, _TOO_MANY if is_full else None)) is not None:
                yield Mark(first.info.offset, first.number - 1), row

    def _load(self, member: Member, *, has_image: bool) -> None:
        """Read the member's bytes if they are needed."""
        if member.is_text and member.info.size <= MAX_LINE_BYTES and self._is_wanted(member):
            member.data = read_member(self._archive, member.info, MAX_LINE_BYTES)
        elif member.is_image and self.images and not (self.has_spans or member.fault()):
            is_asked = not has_image if self._chosen is None else self._is_chosen(member)
            if is_asked:
                member.data = read_member(self._archive, member.info, MAX_IMAGE_BYTES)

    def _is_chosen(self, member: Member) -> bool:
        """Whether the member ends in the image column, or is any image if that chooses none."""
        return member.is_image and f".{member.column}".endswith(f".{self._chosen or ''}")

    def _is_wanted(self, member: Member) -> bool:
        if member.column.endswith("json") and self._json_columns:
            return True
        return f".{member.column}".endswith(self._text_endings)

    def _row(self, sample: list[Member], fault: Fault | None) -> ManifestRow | None:
        """The row of a sample; None without an image. Counts skipped members."""
        images = [member for member in sample if member.is_image]
        for member in sample:
            if not member.is_image and not (images and member.is_text):
                is_lost = member.is_text and not images
                self._skip(ending(member.info.name) + WITHOUT_IMAGE * is_lost)
        if not images:
            return None
        key, span = sample[0].key, None
        asked = images
        if self._chosen is not None:
            asked = [member for member in images if member.column == self._chosen]
            asked = asked or [member for member in images if self._is_chosen(member)]
        if len(asked) > 1 and not self.by_last_dot:
            raise SeveralImages
        for member in images:
            if member not in asked:
                self._skip(f".{member.column.rpartition('.')[2]} beside another image")
        image = asked[0] if asked else images[0]
        name = image.info.name if asked else f"{key}.{self._chosen}"
        if not asked:
            missing = f"The sample has no member that ends in .{self._chosen}."
            fault = fault or Fault("missing", missing)
        names = Counter(member.column for member in sample)
        alike = asked if len(asked) > 1 else [m for m in sample if names[m.column] > 1]
        if alike:
            what = "several images" if alike is asked else "members of one name"
            shown = " and ".join(f"{display_name(m.info.name)} (member {m.number})" for m in alike)
            fault = fault or Fault("decode_failed", f"The sample has {what}: {shown}.")
        values, text_fault = self._values(sample, image)
        if not isinstance(values.get(ID), str | int | float) or isinstance(values[ID], bool):
            values.pop(ID, None)  # texts of data sets have such ids, and no rows depend on them
        fault = fault or image.fault() or text_fault
        if fault is None and self.has_spans:
            span = image.info.offset_data, image.info.size
        data = image.data if fault is None else None
        values[self.image_column] = {"path": f"{self.name}/{name}", "bytes": data}
        return ManifestRow(f"{self.name}, sample {display_name(key)}", values, fault, span)

    def _skip(self, kind: str) -> None:
        """Count a skipped member."""
        is_known = kind in self.skipped or len(self.skipped) < MAX_KINDS
        self.skipped[kind if is_known else OTHER_ENDING] += 1

    def _values(
        self, sample: Iterable[Member], image: Member
    ) -> tuple[dict[str, Any], Fault | None]:
        """The columns of the texts, and the fault of an invalid text.

        A text takes precedence over a key of JSON. `a.5.txt` beside `a.5.jpg` is the column `txt`.
        """
        keys, texts, fault = dict[str, Any](), dict[str, Any](), None
        stem = image.column.rpartition(".")[0]
        for member in (member for member in sample if member.is_text):
            column = member.column.removeprefix(f"{stem}.") if stem else member.column
            is_wanted = bool(self._json_columns) if column == "json" else column in self.columns
            value = None
            if is_wanted and member.data is None:
                fault = Fault("too_large", f"The sample's .{column} {LINE_TOO_LONG}.")
            elif is_wanted:
                try:
                    value = parse_text(member)
                except ValueError as problem:
                    reason = str(problem).removeprefix("it ")
                    reason = reason if reason != str(problem) else f"cannot be read: {reason}"
                    fault = Fault("decode_failed", f"The sample's .{column} {reason}.")
            if column != "json":
                texts[column] = value
            elif isinstance(value, dict):
                keys |= value
        return {**keys, **texts}, fault


def parse_text(member: Member) -> Any:
    """The text of a member, or its JSON value. Raises ValueError, with the reason."""
    data = member.data or b""
    if is_lfs_pointer(data):
        raise ValueError(f"it {LFS_MESSAGE}")
    try:
        text = decode_text(data)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    is_json = member.column.endswith("json")
    return parse_json(text.encode()) if is_json else text
