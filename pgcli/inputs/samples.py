"""Converts the members of a WebDataset archive to rows, one per sample.

The key of a member is its path up to the first dot of the file name; consecutive members with the
same key form a sample. The image of a sample is the one without a further dot in its name. If no
image is plain, or images are numbered (`frame.0000.png`, `frame.0001.png`), the sample is split:
the key becomes the name without the last ending, and each image has its own row.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

from pgcli.foreign_text import LFS_MESSAGE, decode_text, is_lfs_pointer
from pgcli.inputs.lines import LINE_TOO_LONG, MAX_LINE_BYTES, parse_json
from pgcli.inputs.paths import display_name
from pgcli.inputs.readers import IMAGE_ENDINGS, OTHER_ENDING, ManifestRow, Mark, ending
from pgcli.records import MAX_IMAGE_BYTES, Fault

#: Endings of texts. Each text is a column; the keys of a `.json` member are columns.
TEXT_ENDINGS = frozenset({".txt", ".text", ".caption", ".cls", ".json"})
#: Limits of a sample in memory.
MAX_MEMBERS, MAX_BYTES = 1000, 64 * 2**20
#: Kinds of skipped members that are counted apart.
MAX_KINDS = 1000
#: Added to the offset of a mark in a group that is split; members begin at multiples of 512.
SPLIT = 1

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


class Member:
    """A member of an archive by its number, from 1.

    Its name is `key`, a dot, and its name in the sample: `stem`, a dot, and `ending`. The stem
    may be empty, and the ending is in lower case and begins with its dot.
    """

    __slots__ = (
        "data",
        "ending",
        "endings",
        "info",
        "is_image",
        "is_text",
        "key",
        "number",
        "stem",
    )

    def __init__(self, number: int, info: tarfile.TarInfo, key: str, endings: str):
        self.number, self.info, self.key, self.endings = number, info, key, endings
        self.stem, _, last = endings.rpartition(".")
        self.ending = f".{last.lower()}" if endings else ""
        self.is_image = self.ending in IMAGE_ENDINGS
        self.is_text = self.ending in TEXT_ENDINGS and info.isreg()
        self.data: bytes | None = None

    @property
    def is_numbered(self) -> bool:
        """Whether the stem is a number, or several, as of a frame or a version."""
        return self.stem.replace(".", "").isdigit()

    def is_below(self, stem: str) -> bool:
        """Whether the stem is this one, or its beginning up to a dot."""
        return f"{self.stem}.".startswith(f"{stem}.")

    def belongs_to(self, image: Member) -> bool:
        """Whether the member is not an image, and its name is the image's, or continues it."""
        return not self.is_image and self.is_below(image.stem)

    def column(self, stem: str) -> str:
        """The member's column in the sample of a stem: `txt`, `neg.txt`."""
        endings = self.endings
        if stem and self.is_below(stem):
            endings = endings[len(stem) + 1 :]
        endings = endings.lower()
        return endings if endings.isascii() else endings.encode("utf-8", "replace").decode()

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


def member_of(number: int, info: tarfile.TarInfo) -> Member | None:
    """The member of a header; None for a folder and for a hidden file."""
    folder, slash, last = info.name.removeprefix("./").rpartition("/")
    stem, _, endings = last.partition(".")
    if info.isdir() or not stem or _HIDDEN.search(folder):
        return None
    return Member(number, info, f"{folder}{slash}{stem}", endings)


class Sample:
    """Members with the same key, up to the limits.

    The members of a split sample have the same stem; otherwise `stem` is the image's, if any.
    """

    def __init__(self, stem: str = "", *, is_split: bool = False):
        self.stem, self.is_split = stem, is_split
        self.members, self.size = list[Member](), 0
        self.is_full = self.is_too_large = False

    def add(self, member: Member, size: int) -> None:
        """Add a member that takes `size` bytes."""
        if self.is_full:
            self.is_too_large = True
            return
        self.members.append(member)
        self.size += size
        self.is_full = len(self.members) >= MAX_MEMBERS or self.size > MAX_BYTES

    def repeated(self) -> Fault | None:
        """The fault of two members with the same name."""
        names: dict[str, Member] = {}
        for member in self.members:
            first = names.setdefault(member.endings.lower(), member)
            if first is not member:
                pair = " and ".join(
                    f"{display_name(m.info.name)} (member {m.number})" for m in (first, member)
                )
                return Fault("decode_failed", f"The sample has two members of one name: {pair}.")
        return None


@dataclass
class SampleReader:
    """Reads samples as rows with at least these columns, and counts skipped members.

    `image_column` selects the image if it ends like one (`seg.png`). `read` returns the bytes of
    the current member. With `has_spans`, a row has the offset of its image instead of the bytes;
    without `images`, it has neither.

    `skipped` counts members by ending, `split` the rows of split samples; `example` is the name of
    such an image after its key.
    """

    archive: str
    columns: frozenset[str]
    image_column: str
    read: Callable[[tarfile.TarInfo, int], bytes]
    has_spans: bool
    images: bool
    skipped: Counter[str] = field(default_factory=Counter)
    split: int = 0
    example: str = ""

    def __post_init__(self) -> None:
        name = self.image_column.lower().removeprefix(".")
        self._chosen = name if f".{name.rpartition('.')[2]}" in IMAGE_ENDINGS else None
        self._json_columns = self.columns - {self.image_column, "txt"}
        self._text_endings = tuple(f".{column}" for column in self.columns)

    def rows(
        self, members: Iterable[Member], *, is_split: bool = False
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """The rows of all samples with an image; with `is_split` members begin in a split group."""
        for _, group in groupby(members, lambda member: member.key):
            for number, sample in enumerate(self._samples(group, is_split=is_split)):
                first, is_within = sample.members[0], is_split or number > 0
                if (row := self._row(sample)) is not None:
                    self.split += sample.is_split
                    yield Mark(first.info.offset + SPLIT * is_within, first.number - 1), row
            is_split = False

    def _samples(self, group: Iterator[Member], *, is_split: bool) -> Iterator[Sample]:
        """The samples of consecutive members with the same key.

        They are one sample if an image is plain and none is numbered, or if all images have the
        same stem; only the members in memory decide.
        """
        sample, stems, is_numbered = Sample(), set[str](), False
        is_one = is_chosen = self._chosen is not None and "." in self._chosen
        for member in () if is_split else group:
            if member.is_image and member.is_numbered and stems <= {""} and not is_chosen:
                is_numbered, is_one = True, False
            if sample.is_full and not is_one:
                is_split, group = True, chain([member], group)
                break
            self._load(member, is_one=is_one)
            is_held = member.is_text or (member.is_image and stems and not is_one)
            sample.add(member, member.info.size if is_held else 0)
            if member.is_image:
                stems.add(member.stem)
                if not (member.stem or is_one or is_numbered):
                    is_one, sample.size, sample.is_full = True, 0, False
        if not is_split and (is_one or len(stems) < 2):
            sample.stem = "" if is_one else next(iter(stems), "")
            if sample.members:
                yield sample
            return
        group, sample = chain(sample.members, group), Sample(is_split=True)
        for member in group:
            is_below = member.is_below(sample.stem) and not member.is_image
            if member.stem != sample.stem and not is_below:
                following = Sample(member.stem, is_split=True)
                if member.is_image:  # texts before it may be its own
                    while sample.members and sample.members[-1].belongs_to(member):
                        following.members.insert(0, sample.members.pop())
                if sample.members:
                    yield sample
                sample = following
            self._load(member, is_one=False)
            sample.add(member, member.info.size if member.is_text else 0)
        yield sample

    def _load(self, member: Member, *, is_one: bool) -> None:
        """Read the member's bytes if needed; with `is_one`, the sample has a plain image."""
        if member.data is not None:
            return
        if member.is_text and member.info.size <= MAX_LINE_BYTES and self._is_wanted(member):
            member.data = self.read(member.info, MAX_LINE_BYTES)
        elif member.is_image and self.images and not self.has_spans and member.fault() is None:
            name = member.endings.lower()
            is_chosen = self._chosen is not None and f".{name}".endswith(f".{self._chosen}")
            if is_chosen or (self._chosen is None and not is_one):
                member.data = self.read(member.info, MAX_IMAGE_BYTES)

    def _is_wanted(self, member: Member) -> bool:
        if member.ending == ".json" and self._json_columns:
            return True
        return f".{member.column('')}".endswith(self._text_endings)

    def _row(self, sample: Sample) -> ManifestRow | None:
        """The row of a sample; None without an image. Counts skipped members."""
        images = [member for member in sample.members if member.is_image]
        for member in sample.members:
            if not member.is_image and not (images and member.is_text):
                is_lost = member.is_text and not images
                self._skip(ending(member.info.name) + WITHOUT_IMAGE * is_lost)
        if not images:
            return None
        image = self._asked(images, sample.stem)
        repeated = sample.repeated()
        for member in images if repeated is None else ():
            if member is not image:
                self._skip(f"{member.ending} beside another image")
        first = sample.members[0]
        key = f"{first.key}.{sample.stem}" if sample.is_split and sample.stem else first.key
        values, text_fault = self._values(sample, image)
        if not isinstance(values.get(ID), str | int | float) or isinstance(values[ID], bool):
            values.pop(ID, None)  # texts of data sets have such ids, and no rows depend on them
        fault = repeated or (_TOO_MANY if sample.is_too_large else None)
        name, span = f"{key}.{self._chosen}", None
        if image is None:
            missing = f"The sample has no member that ends in .{self._chosen}."
            fault = fault or Fault("missing", missing)
        else:
            name = image.info.name
            if sample.is_split and not image.is_numbered:
                self.example = self.example or image.endings
            fault = fault or image.fault() or text_fault
            span = (image.info.offset_data, image.info.size) if self.has_spans else None
        data = image.data if image is not None else None
        values[self.image_column] = {"path": f"{self.archive}/{name}", "bytes": data}
        return ManifestRow(f"{self.archive}, sample {display_name(key)}", values, fault, span)

    def _skip(self, kind: str) -> None:
        """Count a skipped member."""
        is_known = kind in self.skipped or len(self.skipped) < MAX_KINDS
        self.skipped[kind if is_known else OTHER_ENDING] += 1

    def _asked(self, images: list[Member], stem: str) -> Member | None:
        """The selected image, else the first plain one, else the first."""
        if self._chosen is not None:
            return next((m for m in images if m.column(stem) == self._chosen), None)
        return next((image for image in images if image.stem == stem), images[0])

    def _values(self, sample: Sample, image: Member | None) -> tuple[dict[str, Any], Fault | None]:
        """The columns of the texts, and the fault of an invalid text.

        A text takes precedence over a key of JSON, and the image's own text over another one. Both
        `a.jpg.txt` and `a.txt` are the column `txt`.
        """
        keys, texts, fault = dict[str, Any](), dict[str, Any](), None
        stem, members = sample.stem, [member for member in sample.members if member.is_text]
        columns = {member: member.column(stem) for member in members}
        names = set(columns.values())
        prefix = f"{image.column(stem)}." if image is not None else ""
        for member in sorted(members, key=lambda member: member.is_below(stem)):
            column = columns[member]
            if (name := column.removeprefix(prefix)) not in names:
                column = name
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
    return parse_json(text.encode(), allow_nan=True) if member.ending == ".json" else text
