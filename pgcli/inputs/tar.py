"""Reads WebDataset archives: each sample is a row. Nothing is extracted to disk.

A sample is consecutive members with the same name up to a dot. Its columns are those of its `.json`
member, `txt` for its `.txt` member, and the image column. An image or a text that cannot be read is
a fault of its row.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

from pgcli.errors import ManifestError
from pgcli.inputs.lines import MAX_LINE_BYTES, TOO_LONG, parse_json
from pgcli.inputs.readers import IMAGE_ENDINGS, START, ManifestRow, Mark
from pgcli.inputs.tables import Table
from pgcli.records import MAX_IMAGE_BYTES, Fault

#: Headers may state lengths of their own, and tarfile would read as much at once.
MAX_READ_BYTES = 16 * 2**20
#: Images hardly compress; what unpacks to more than this is a bomb.
MAX_RATIO = 200

ID = "id"
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, zlib.error)
_OUTSIDE = Fault("path_not_allowed", "The member's name leads outside the archive.")
_NOT_A_FILE = Fault("not_a_regular_file", "The member is a link or a device, not a file.")
_TOO_LARGE = Fault("too_large", f"The member is larger than {MAX_IMAGE_BYTES} bytes.")
_EMPTY = Fault("not_an_image", "The member is empty.")


class TarTable(Table):
    """An archive as a table of samples."""

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """A row for each sample with an image; in a local file that is not compressed, its span.

        Raises ManifestError for an archive that is cut off or damaged.
        """
        file, image_column = self.file, self.image_column
        is_compressed = not file.path.lower().endswith(".tar")
        has_spans = not is_compressed and file.url_reader is None
        json_names = columns - {image_column, "txt"}
        number, sample = mark.number, Sample("", mark)
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
                while (member := archive.next()) is not None:
                    archive.members = []  # it would keep a million of them
                    number += 1
                    key, ending = split_name(member.name)
                    if member.isdir() or key is None:
                        continue
                    if key != sample.key:
                        if sample.image is not None:
                            yield sample.mark, sample.row(file.name, image_column)
                        sample = Sample(key, Mark(member.offset, number - 1))
                    if ending in IMAGE_ENDINGS and sample.image is None:
                        sample.image = {"path": f"{file.name}/{member.name}", "bytes": None}
                        sample.image_fault = member_fault(member)
                        if has_spans:
                            sample.span = member.offset_data, member.size
                        elif images and sample.image_fault is None:
                            sample.image["bytes"] = read_member(archive, member, MAX_IMAGE_BYTES)
                    elif ending in (".json", ".txt") and member.isreg():
                        names = {"txt"} if ending == ".txt" else json_names
                        if names.isdisjoint(columns):
                            sample.values |= dict.fromkeys(names)
                        elif member.size > MAX_LINE_BYTES:
                            message = f"The sample's {ending} {TOO_LONG}."
                            sample.text_fault = Fault("too_large", message)
                        else:
                            sample.parse(read_member(archive, member, MAX_LINE_BYTES), ending)
                if bounded.last.strip(b"\0"):
                    raise tarfile.ReadError("the archive is damaged")
        except FileNotFoundError:
            raise ManifestError(
                f"{file.name} does not exist", hint="check the spelling and the folder"
            ) from None
        except _BROKEN as problem:
            place = f", behind member {number}" if number else " is not a readable tar archive"
            raise ManifestError(
                f"{file.name}{place}: {problem}",
                hint="copy or download it again, or leave it out; `tar -tf FILE` lists its whole "
                "members",
            ) from problem
        if sample.image is not None:
            yield sample.mark, sample.row(file.name, image_column)


class Sample:
    """The members of a sample: where the first begins, its image, and the columns of its texts."""

    def __init__(self, key: str, mark: Mark):
        self.key, self.mark = key, mark
        self.values: dict[str, Any] = {}
        self.image: dict[str, Any] | None = None
        self.image_fault: Fault | None = None
        self.text_fault: Fault | None = None
        self.span: tuple[int, int] | None = None

    def parse(self, text: bytes, ending: str) -> None:
        """Take the columns of a text member; JSON that is not an object has none."""
        try:
            is_json = ending == ".json"
            value = parse_json(text, allow_nan=True) if is_json else {"txt": text.decode()}
        except UnicodeDecodeError:
            self.text_fault = Fault("decode_failed", f"The sample's {ending} is not UTF-8.")
        except ValueError as problem:
            reason = str(problem).removeprefix("it ")
            reason = reason if reason != str(problem) else f"cannot be read: {reason}"
            self.text_fault = Fault("decode_failed", f"The sample's {ending} {reason}.")
        else:
            self.values |= value if isinstance(value, dict) else {}

    def row(self, archive: str, image_column: str) -> ManifestRow:
        """The sample's row, in an archive of this name."""
        fault = self.image_fault or self.text_fault
        values = {**self.values, image_column: self.image}
        if not isinstance(values.get(ID), str | int | float) or isinstance(values[ID], bool):
            values.pop(ID, None)  # texts of data sets have such ids, and no rows depend on them
        return ManifestRow(f"{archive}, sample {self.key}", values, fault, self.span)


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


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, max_bytes: int) -> bytes:
    """A member's bytes, about `max_bytes` at most. Raises OSError and TarError."""
    file = archive.extractfile(member)
    assert file is not None
    pieces: list[bytes] = []
    while len(pieces) * 2**20 < max_bytes and (piece := file.read(2**20)):
        pieces.append(piece)
    return b"".join(pieces)


def split_name(name: str) -> tuple[str | None, str]:
    """A member's key, up to the first dot of its last part, and its ending; no key if hidden."""
    folder, slash, last = name.rpartition("/")
    stem, dot, suffixes = last.partition(".")
    if not stem or any(
        piece.startswith(".") and piece not in (".", "..") for piece in name.split("/")
    ):
        return None, ""
    return f"{folder}{slash}{stem}", f".{suffixes.rpartition('.')[2].lower()}" if dot else ""


def member_fault(member: tarfile.TarInfo) -> Fault | None:
    """Why a member cannot be an image, from its header alone."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return _OUTSIDE
    if not member.isreg() or member.issparse():
        return _NOT_A_FILE
    if member.size > MAX_IMAGE_BYTES:
        return _TOO_LARGE
    return None if member.size else _EMPTY
