"""Walks a folder for images, in code-point order, without leaving it through links."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pgcli.records import Fault
from pgcli.sources.endings import IMAGE_ENDINGS, ending
from pgcli.sources.image_location import outside_fault
from pgcli.sources.name_filter import ALL_NAMES, NameFilter
from pgcli.sources.paths import resolves_inside

UNREADABLE = Fault("permission_denied", "The folder may not be read.")
_LINKED = "(linked folder)"


class FolderEntry(NamedTuple):
    """An image by its path relative to the folder, or a subfolder that cannot be read."""

    relative: str
    fault: Fault | None = None


class _Level(NamedTuple):
    """A folder on the way down: its prefix, whether it is inside the root, its entries to come."""

    prefix: str
    is_inside: bool
    entries: Iterator[os.DirEntry[str]]


@dataclass
class FolderWalk:
    """One walk through a folder, which yields each image once.

    A link to a folder is followed only if that is outside the root, this is allowed, and it was
    not walked before. Images are yielded whose relative paths `names` accepts.
    """

    path: str
    allow_outside_root: bool = False
    names: NameFilter = ALL_NAMES
    has_excluded: bool = False
    ignored: Counter[str] = field(default_factory=Counter)
    _walked: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._root = os.path.realpath(self.path)

    def __iter__(self) -> Iterator[FolderEntry]:
        # a stack, not recursion: a folder may be deeper than Python's recursion limit
        levels = [self._level(self.path, "", is_inside=True)]
        while levels:
            prefix, is_inside, entries = levels[-1]
            entry = next(entries, None)
            if entry is None:
                levels.pop()
            elif _is_folder(entry):
                if self.names.excludes_folder(prefix + entry.name):
                    continue
                try:
                    below = self._enter(entry, prefix, is_inside)
                    levels += [below] if below else []
                except OSError:
                    yield FolderEntry(prefix + entry.name, UNREADABLE)
            elif ending(entry.name) in IMAGE_ENDINGS:
                if self.names.accepts(prefix + entry.name):
                    yield FolderEntry(prefix + entry.name, self._fault(entry))
                else:
                    self.has_excluded = True
            else:
                self.ignored[ending(entry.name)] += 1

    def _level(self, path: str, prefix: str, *, is_inside: bool) -> _Level:
        with os.scandir(path) as entries:
            visible = [entry for entry in entries if not is_passed_over(entry)]
        # a folder sorts as its contents will: with the slash that follows its name
        visible.sort(key=lambda entry: entry.name + "/" * _is_folder(entry))
        return _Level(prefix, is_inside, iter(visible))

    def _enter(self, entry: os.DirEntry[str], prefix: str, is_inside: bool) -> _Level | None:
        """The level below a folder, or None if it is not to be walked from here."""
        is_new = not entry.is_symlink()
        if not is_new:
            is_inside = resolves_inside(entry.path, self._root)
        if not is_inside:
            status = Path(entry.path).stat()
            key = (status.st_dev, status.st_ino)
            is_new = self.allow_outside_root and key not in self._walked
            self._walked.add(key)
        if not is_new:
            self.ignored[_LINKED] += 1
            return None
        return self._level(entry.path, f"{prefix}{entry.name}/", is_inside=is_inside)

    def _fault(self, entry: os.DirEntry[str]) -> Fault | None:
        if self.allow_outside_root or not entry.is_symlink():
            return None
        return outside_fault(entry.path, self._root)


def is_passed_over(entry: os.DirEntry[str]) -> bool:
    """Whether the entry is hidden, or the state folder of a run, which has no images."""
    return entry.name.startswith(".") or (entry.name.endswith(".pgcli") and _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a cycle of links
        return False
