"""Where below a folder a row's picture goes: by the row's id, whatever that is."""

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

LONGEST_PART = 255  # bytes that file systems take
LONGEST_PATH = 2048  # bytes; what is deeper loses its outermost folders
MOST_PARTS = LONGEST_PATH // 2
LONGEST_ENDING = 5  # bytes, of `.webp`

#: A folder's or a file's name, and whether it is a folder's -> the name that it gets.
Sanitize = Callable[[str, bool], str]

_DRIVE = re.compile(r"^([A-Za-z]):(?=[/\\])")
_SLASHES = re.compile(r"[/\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class FileName(NamedTuple):
    """A relative path with slashes, without its ending; the ending is empty where the id has none
    of a picture, and the picture's format adds its own.
    """

    stem: str
    ending: str

    def ended(self, own: str) -> str:
        """The whole name, with the picture's own ending where the id has none."""
        return self.stem + (self.ending or own)


class FileNames:
    """Gives each row a name that no other has, also where capitals do not tell names apart.

    Names follow from the ids and their order alone. Of equal ones the second is numbered `-2`.
    """

    def __init__(self, endings: frozenset[str], tidied: Sanitize | None = None):
        self._endings = endings
        self._tidied = tidied or (
            lambda part, is_folder: folder_name(part, endings, is_folder=is_folder)
        )
        self._taken: set[bytes] = set()  # digests, as names of millions of rows would weigh
        self._next: dict[bytes, int] = {}

    def claim(self, id_: str, index: int) -> FileName:
        """The name for the row of this id; what an id has of no name is named by the index."""
        *folders, last = _parts(id_, index)
        last = self._tidied(last, False)
        ending = PurePosixPath(last).suffix
        if ending.lower() not in self._endings:
            ending = ""
        stem = last.removesuffix(ending)
        prefix = "".join(f"{self._fitting(folder)}/" for folder in folders)
        asked = _digest(prefix + _cut(stem, 1, ending), ending)
        number = self._next.get(asked, 1)
        while True:
            name = FileName(prefix + _cut(stem, number, ending), ending)
            number += 1
            if self._take(name):
                break
        if number > 2:
            self._next[asked] = number
        return name

    def _fitting(self, folder: str) -> str:
        """The tidied folder, its name cut where that would be too long."""
        while len(os.fsencode(tidied := self._tidied(folder, True))) > LONGEST_PART:
            folder = folder[:-1]
        return tidied

    def _take(self, name: FileName) -> bool:
        """Claim the name if it is free: one without an ending of its own may come to bear any."""
        stem, any_ending, some_ending = name.stem, _digest(name.stem, "*"), _digest(name.stem, "?")
        whole = _digest(stem, name.ending) if name.ending else some_ending
        if self._taken & {any_ending, whole}:
            return False
        self._taken |= {whole, some_ending} if name.ending else {any_ending}
        return True


def folder_name(part: str, endings: frozenset[str], *, is_folder: bool) -> str:
    """The name; a folder's is none of a file with such an ending, in whose way it would be."""
    is_like_a_file = is_folder and PurePosixPath(part).suffix.lower() in endings
    return f"{part}_" if is_like_a_file else part


def _parts(id_: str, index: int) -> list[str]:
    """The id's folders and file name, none of which leads anywhere but down."""
    text = parse_path(id_)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name can hold
        text = encodable(text)
    text = _DRIVE.sub(r"\1", _CONTROL.sub("_", text))  # a terminal that lists them obeys no name
    parts = [part for part in _SLASHES.split(text) if part not in ("", ".", "..")]
    parts = [_cut(part, 1, "") for part in parts[-MOST_PARTS:-1]] + parts[-1:] or [str(index)]
    while len(parts) > 1 and sum(len(os.fsencode(part)) + 1 for part in parts) > LONGEST_PATH:
        del parts[0]
    return parts


def _cut(stem: str, number: int, ending: str) -> str:
    """The stem with its number, short enough to take the ending."""
    tail = f"-{number}" if number > 1 else ""
    room = LONGEST_PART - len(tail) - (len(ending) or LONGEST_ENDING)
    stem = stem[:LONGEST_PART]
    while len(os.fsencode(stem)) > room:
        stem = stem[:-1]
    return stem + tail


def _digest(stem: str, ending: str) -> bytes:
    folded = unicodedata.normalize("NFC", f"{stem}\0{ending}").casefold()
    return blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest()
