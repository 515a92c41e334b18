"""File names of drawings: made from the ids of the rows, safe and unique."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import NamedTuple

from pgcli.printable import encodable
from pgcli.sources.paths import parse_path

LONGEST_PART = 255  # bytes that file systems allow for a name
LONGEST_PATH = 2048  # bytes; a longer path loses its outermost folders
MOST_PARTS = LONGEST_PATH // 2
LONGEST_ENDING = 5  # bytes, of `.webp`

#: Changes the name of a folder or file to one that is allowed; the flag says it is a folder.
Sanitize = Callable[[str, bool], str]

_DRIVE = re.compile(r"^([A-Za-z]):(?=[/\\])")
_SLASHES = re.compile(r"[/\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class FileName(NamedTuple):
    """A relative path without its ending; the ending is empty if the id has none of an image
    format.
    """

    stem: str
    ending: str

    def with_ending(self, default: str) -> str:
        """The whole name, with the default ending if the id has none."""
        return self.stem + (self.ending or default)


class FileNames:
    """Gives each row a unique file name, also on file systems that ignore case.

    Names depend on the ids and their order only. The second of two equal names ends in `-2`.
    """

    def __init__(self, endings: frozenset[str], sanitize: Sanitize | None = None):
        self._endings = endings
        self._sanitize = sanitize or (
            lambda part, is_folder: folder_name(part, endings, is_folder=is_folder)
        )
        self._taken: set[bytes] = set()  # digests, as millions of names would take too much memory
        self._next: dict[bytes, int] = {}

    def claim(self, id_: str, index: int) -> FileName:
        """The file name for the row with this id, or this index if the id has no usable name."""
        *folders, last = _parts(id_, index)
        last = self._sanitize(last, False)
        ending = PurePosixPath(last).suffix
        if ending.lower() not in self._endings:
            ending = ""
        stem = last.removesuffix(ending)
        prefix = "".join(f"{self._fitting(folder)}/" for folder in folders)
        wanted = _digest(prefix + _cut(stem, 1, ending), ending)
        number = self._next.get(wanted, 1)
        while True:
            name = FileName(prefix + _cut(stem, number, ending), ending)
            number += 1
            if self._take(name):
                break
        if number > 2:
            self._next[wanted] = number
        return name

    def _fitting(self, folder: str) -> str:
        """The allowed name of the folder, cut if it is too long."""
        while len(os.fsencode(name := self._sanitize(folder, True))) > LONGEST_PART:
            folder = folder[:-1]
        return name

    def _take(self, name: FileName) -> bool:
        """Claim the name if it is free; one without an ending may get any image ending later."""
        stem, any_ending, some_ending = name.stem, _digest(name.stem, "*"), _digest(name.stem, "?")
        whole = _digest(stem, name.ending) if name.ending else some_ending
        if self._taken & {any_ending, whole}:
            return False
        self._taken |= {whole, some_ending} if name.ending else {any_ending}
        return True


def folder_name(part: str, endings: frozenset[str], *, is_folder: bool) -> str:
    """The name, with `_` added to a folder's with an image ending: a file may need that name."""
    looks_like_file = is_folder and PurePosixPath(part).suffix.lower() in endings
    return f"{part}_" if looks_like_file else part


def _parts(id_: str, index: int) -> list[str]:
    """The id's folders and file name, without `..`, a drive or a leading slash."""
    text = parse_path(id_)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate, which no file name contains
        text = encodable(text)
    text = _DRIVE.sub(r"\1", _CONTROL.sub("_", text))  # terminals would execute control characters
    parts = [part for part in _SLASHES.split(text) if part not in ("", ".", "..")]
    parts = [_cut(part, 1, "") for part in parts[-MOST_PARTS:-1]] + parts[-1:] or [str(index)]
    while len(parts) > 1 and sum(len(os.fsencode(part)) + 1 for part in parts) > LONGEST_PATH:
        del parts[0]
    return parts


def _cut(stem: str, number: int, ending: str) -> str:
    """The stem with its number, short enough for the ending."""
    tail = f"-{number}" if number > 1 else ""
    max_bytes = LONGEST_PART - len(tail) - (len(ending) or LONGEST_ENDING)
    stem = stem[:LONGEST_PART]
    while len(os.fsencode(stem)) > max_bytes:
        stem = stem[:-1]
    return stem + tail


def _digest(stem: str, ending: str) -> bytes:
    folded = unicodedata.normalize("NFC", f"{stem}\0{ending}").casefold()
    return blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest()
