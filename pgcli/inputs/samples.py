"""Converts the members of a WebDataset archive to rows, one per sample.

As in WebDataset, the key of a member is its path up to the first dot of the file name; consecutive
members with the same key form a sample, which has one image. If the members of an archive had
several, all of its keys end before the last dot: `frame.0000.png` and `frame.0001.png` are two
samples.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pgcli.inputs.lines import LINE_TOO_LONG, MAX_LINE_BYTES, parse_json
from pgcli.inputs.paths import display_name
from pgcli.inputs.readers import IMAGE_ENDINGS, OTHER_ENDING, ManifestRow, Mark, ending
from pgcli.records import MAX_IMAGE_BYTES, Fault
from pgcli.text import LFS_MESSAGE, decode_text, is_lfs_pointer

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


@dataclass
class SampleReader:
    """Reads samples as rows with at least these columns, and counts skipped members by ending.

    `image_column` selects the image if it ends like one (`seg.png`). `read` returns the bytes of
    the current member. With `has_spans`, a row has the offset of its image instead of the bytes;
    without `images`, it has neither.
    """

    archive: str
    columns: frozenset[str]
    image_column: str
    read: Callable[[tarfile.TarInfo, int], bytes]
    by_last_dot: bool
    has_spans: bool
    images: bool
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
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
            member.data = self.read(member.info, MAX_LINE_BYTES)
        elif member.is_image and self.images and not (self.has_spans or member.fault()):
            is_asked = not has_image if self._chosen is None else self._is_chosen(member)
            member.data = self.read(member.info, MAX_IMAGE_BYTES) if is_asked else None

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
        values[self.image_column] = {"path": f"{self.archive}/{name}", "bytes": data}
        return ManifestRow(f"{self.archive}, sample {display_name(key)}", values, fault, span)

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
    return parse_json(text.encode(), allow_nan=True) if is_json else text
