"""File names from the ids of rows: safe, unique, and deterministic."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from pathlib import PurePosixPath
from typing import NamedTuple

from pgcli.stores.files import parse_path

LONGEST_NAME = 255  # bytes that file systems allow
LONGEST_PATH = 2048  # bytes; longer and deeper paths lose their outermost folders
MOST_FOLDERS = 64
LONGEST_ENDING = 8  # bytes, of `.caption`

#: Makes an allowed name from the name of a folder (with True) or file.
Sanitize = Callable[[str, bool], str]

_SLASHES = re.compile(r"[/\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # terminals would execute these
_NOT_BYTES = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")  # surrogates of no byte


class FileName(NamedTuple):
    """A relative path without its ending, which is empty if the id has no image ending.

    `wish` is the path with the ending that the id asks for; it differs if the name is taken or not
    allowed.
    """

    stem: str
    ending: str
    wish: str

    def with_ending(self, default: str) -> str:
        """The path with its ending, or with the default."""
        return self.stem + (self.ending or default)


class FileNames:
    """Makes a unique file name for each row; the second of two equal names ends in `-2`.

    Names differ also on file systems that ignore case.
    """

    def __init__(self, endings: frozenset[str], sanitize: Sanitize | None = None):
        self._endings = endings
        self._sanitize = sanitize or (
            lambda name, is_folder: folder_name(name, endings, is_folder=is_folder)
        )
        self._taken: dict[bytes, tuple[str, ...]] = {}  # the endings of each stem, by its digest
        self._next: dict[tuple[str, str], int] = {}  # number of a taken name

    def claim(self, id_: str, index: int, suffix: str = "") -> FileName:
        """The file name of the row with this id, or index if the id contains no name.

        A suffix, as the object that a row is about, is added to the stem.
        """
        text = _CONTROL.sub("_", _NOT_BYTES.sub("\ufffd", parse_path(id_)))
        names = [name for name in _SLASHES.split(text) if name.strip() not in ("", ".", "..")]
        *folders, last = names = names or [str(index)]
        own_name = "/".join(names)
        folders = [shortened(name, self._folder) for name in folders[-MOST_FOLDERS:]]
        while len(os.fsencode("/".join(folders))) > LONGEST_PATH - LONGEST_NAME - 2:
            del folders[0]
        last = self._sanitize(last, False)
        ending = PurePosixPath(last).suffix
        ending = ending if ending.lower() in self._endings else ""
        tail = _SLASHES.sub("_", _CONTROL.sub("_", suffix))
        stem = last.removesuffix(ending) + (f"-{tail}" if tail else "")
        room = LONGEST_NAME - (len(ending) or LONGEST_ENDING)
        wish = "/".join([*folders, shortened(stem, str, room)]), ending.casefold()
        for number in count(self._next.get(wish, 1)):
            tail = f"-{number}" if number > 1 else ""
            name = "/".join([*folders, shortened(stem, str, room - len(tail)) + tail])
            key = name_key(name)
            endings = self._taken.get(key, ())
            # a name without an ending may get any ending, so its stem is taken completely
            if not endings or (ending and not {"", ending.casefold()} & {*endings}):
                self._taken[key] = (*endings, ending.casefold())
                break
        if number > 1:  # smaller numbers stay taken: a million equal names are not tried each time
            self._next[wish] = number + 1
        return FileName(name, ending, own_name)

    def _folder(self, name: str) -> str:
        return self._sanitize(name, True)


def name_key(name: str) -> bytes:
    """A digest that is equal for names that some file systems treat as equal."""
    folded = unicodedata.normalize("NFC", name).casefold()
    return blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def folder_name(name: str, endings: frozenset[str], *, is_folder: bool) -> str:
    """The name, with `_` after a folder's name that ends like a file's."""
    looks_like_file = is_folder and PurePosixPath(name).suffix.lower() in endings
    return f"{name}_" if looks_like_file else name


def shortened(text: str, change: Callable[[str], str], limit: int = LONGEST_NAME) -> str:
    """The changed text, truncated to `limit` bytes."""
    text = text[:LONGEST_NAME]
    while len(os.fsencode(changed := change(text))) > limit:
        text = text[:-1]
    return changed
