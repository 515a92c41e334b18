"""Reads WebDataset archives: each sample is a row. Nothing is extracted to disk."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Collection, Iterator
from typing import Any

from pgcli.records import MAX_IMAGE_BYTES, NOT_READ, Fault
from pgcli.sources.endings import IMAGE_ENDINGS
from pgcli.sources.readers.bookmarks import Bookmark
from pgcli.sources.readers.lines import MAX_LINE_BYTES, TOO_LONG, parse_json
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow
from pgcli.sources.readers.tar_file import damaged_archive, next_member, open_archive, read_member
from pgcli.sources.source_part import RowSlice

_OUTSIDE = Fault("path_not_allowed", "The member's name leads outside the archive.")
_NOT_A_FILE = Fault("not_a_regular_file", "The member is a link or a device, not a file.")
_TOO_LARGE = Fault("too_large", f"The member is larger than {MAX_IMAGE_BYTES} bytes.")
_EMPTY = Fault("not_an_image", "The member is empty.")


def rows(manifest: Manifest, wanted: Collection[str]) -> Iterator[ManifestRow]:
    """A row for each sample with an image: consecutive members with the same name up to a dot.

    Its columns are those of its `.json` member, `txt` for its `.txt` member, and the image column
    with the image as `{bytes, path}`; columns that are not wanted are present but not read. An
    image or a text that cannot be read is a fault of its row. Raises ManifestError for an archive
    that is cut off or damaged.
    """
    return rows_between(manifest, wanted, RowSlice(0, sys.maxsize))


def rows_between(
    manifest: Manifest, wanted: Collection[str], part: RowSlice
) -> Iterator[ManifestRow]:
    """Some of the rows; of those before them at most `bookmarks.EVERY` headers are read."""
    name, image_column, bookmarks = manifest.name, manifest.image_column, manifest.bookmarks
    sample = TarSample("", name, image_column)
    row, offset, number = bookmarks.before(part.start) or Bookmark(0, 0, 0)
    with open_archive(manifest.location, name, offset) as (archive, file):
        while (member := next_member(archive, name, number)) is not None:
            number += 1
            key, ending = split_name(member.name)
            if member.isdir() or key is None:
                continue
            if key != sample.key:
                for found in sample.row():
                    if row >= part.start:
                        yield found
                    row += 1
                if row >= part.stop:
                    return
                bookmarks.add(row, member.offset, number - 1)
                sample = TarSample(key, name, image_column)
            is_read = row >= part.start and part.needs_image(row)
            sample.add(archive, member, ending, wanted, is_read=is_read)
        if file.last.strip(b"\0"):
            raise damaged_archive(f"{name}, behind member {number}: the archive is damaged")
    yield from sample.row()


class TarSample:
    """The members of one sample, added as they are read."""

    def __init__(self, key: str, archive: str, image_column: str):
        self.key = key
        self._archive, self._image_column = archive, image_column
        self._values: dict[str, Any] = {}
        self._image: dict[str, Any] | None = None
        self._image_fault: Fault | None = None
        self._text_fault: Fault | None = None

    def add(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        ending: str,
        wanted: Collection[str],
        *,
        is_read: bool,
    ) -> None:
        """Add a member: the first image, and texts. What is not wanted is not read."""
        if ending in IMAGE_ENDINGS and self._image is None:
            self._image = {"path": f"{self._archive}/{member.name}", "bytes": None}
            self._image_fault = member_fault(member)
            if self._image_column in wanted and self._image_fault is None:
                data = read_member(archive, member, MAX_IMAGE_BYTES) if is_read else NOT_READ
                self._image["bytes"] = data
        elif ending in (".json", ".txt") and member.isreg():
            names = {"txt"} if ending == ".txt" else set(wanted) - {self._image_column, "txt"}
            if names.isdisjoint(wanted):
                self._values |= dict.fromkeys(names)
            elif member.size > MAX_LINE_BYTES:
                self._text_fault = Fault("too_large", f"The sample's {ending} {TOO_LONG}.")
            else:
                self._parse(read_member(archive, member, MAX_LINE_BYTES), ending)

    def _parse(self, text: bytes, ending: str) -> None:
        """Take the columns of a text member; JSON that is not an object has none."""
        try:
            is_json = ending == ".json"
            value = parse_json(text, allow_nan=True) if is_json else {"txt": text.decode()}
        except UnicodeDecodeError:
            self._text_fault = Fault("decode_failed", f"The sample's {ending} is not UTF-8.")
        except ValueError as problem:
            reason = str(problem).removeprefix("it ")
            reason = reason if reason != str(problem) else f"cannot be read: {reason}"
            self._text_fault = Fault("decode_failed", f"The sample's {ending} {reason}.")
        else:
            self._values |= value if isinstance(value, dict) else {}

    def row(self) -> Iterator[ManifestRow]:
        """The sample's row, if it has an image."""
        if self._image is not None:
            values = {**self._values, self._image_column: self._image}
            fault = self._image_fault or self._text_fault
            yield ManifestRow(f"sample {self.key}", values, fault)


def split_name(name: str) -> tuple[str | None, str]:
    """A member's key, up to the first dot of its last part, and its ending; no key if hidden."""
    folder, slash, last = name.rpartition("/")
    stem, dot, rest = last.partition(".")
    if not stem or any(
        part.startswith(".") and part not in (".", "..") for part in name.split("/")
    ):
        return None, ""
    return f"{folder}{slash}{stem}", f".{rest.rpartition('.')[2].lower()}" if dot else ""


def member_fault(member: tarfile.TarInfo) -> Fault | None:
    """Why a member cannot be an image, from its header alone."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return _OUTSIDE
    if not member.isreg() or member.issparse():
        return _NOT_A_FILE
    if member.size > MAX_IMAGE_BYTES:
        return _TOO_LARGE
    return None if member.size else _EMPTY


TAR = ManifestReader(rows, tolerates_bad_rows=True, rows_between=rows_between)
