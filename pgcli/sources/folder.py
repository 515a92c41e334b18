"""Pictures in folders: found recursively, in code-point order of their relative paths."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pgcli.errors import UsageError
from pgcli.records import Fault, Item
from pgcli.sources.file_list import FileList
from pgcli.sources.paths import display_path, outside_fault, resolves_inside
from pgcli.sources.source_options import IMAGE_ENDINGS, ending

_UNREADABLE = Fault("permission_denied", "The folder may not be read.")
_LINKED = "(linked folder)"


class FolderEntry(NamedTuple):
    """A picture by its path relative to the folder, or a folder that may not be read."""

    relative: str
    fault: Fault | None = None


class _Level(NamedTuple):
    """A folder on the way down: its prefix, whether it really lies in the root, what is left."""

    prefix: str
    is_inside: bool
    entries: Iterator[os.DirEntry[str]]


class FolderSource:
    """A folder as a source. Nothing is remembered of it but counts; each pass walks it anew.

    Once it is listed each pass goes by that, whatever comes to the folder or goes.
    """

    has_prompts = False

    def __init__(self, name: str, path: str, *, alone: bool, allow_outside_root: bool):
        self.name = name
        self.path = path
        self.alone = alone
        self.allow_outside_root = allow_outside_root
        walk = FolderWalk(path, allow_outside_root)
        try:
            self.kinds = Counter(ending(found) for found, _ in walk)
        except OSError as problem:
            raise UsageError(
                f"{name}: {problem.strerror}", hint="mend its permissions, or name another folder"
            ) from problem
        self.total = self.kinds.total()
        self.ignored = walk.ignored
        self._listing: FileList | None = None

    def pin_files(self, listing: FileList, number: int) -> None:
        """Go by what is listed, to which what is new in the folder is added with this number.

        A file that is listed and has vanished stays, so that each keeps its place. Raises OSError.
        """
        self.total = listing.add((found for found, _ in self._walked()), number)
        self._listing = listing

    def items(self, first: int, number: int = 0) -> Iterator[Item]:
        """The folder's pictures, numbered from `first`; those of one list where there are lists."""
        found = self._walked() if self._listing is None else self._remembered(number)
        for index, (relative, fault) in enumerate(found, first):
            path = os.path.join(self.path, relative)  # noqa: PTH118 - keeps the folder as typed
            id_ = display_path(relative if self.alone else path)
            yield Item(index, id_, display_path(path), path, fault=fault)

    def _walked(self) -> Iterator[FolderEntry]:
        return iter(FolderWalk(self.path, self.allow_outside_root))

    def _remembered(self, number: int) -> Iterator[FolderEntry]:
        assert self._listing is not None
        root = os.path.realpath(self.path)
        for relative in self._listing.names(number):
            path = os.path.join(self.path, relative)  # noqa: PTH118
            try:
                kind = os.lstat(path).st_mode
            except OSError:  # looking at it says what is wrong
                kind = 0
            if stat.S_ISDIR(kind):
                yield FolderEntry(relative, _UNREADABLE)
            elif stat.S_ISLNK(kind) and not self.allow_outside_root:
                yield FolderEntry(relative, outside_fault(path, root))
            else:
                yield FolderEntry(relative)


@dataclass
class FolderWalk:
    """One walk through a folder. A picture is found once, at its own place: links to folders are
    entered only if they lead outside, that is allowed, and the folder was not walked before.
    """

    path: str
    allow_outside_root: bool = False
    ignored: Counter[str] = field(default_factory=Counter)
    _walked: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._root = os.path.realpath(self.path)

    def __iter__(self) -> Iterator[FolderEntry]:
        # a stack, not recursion: a folder may be deeper than Python recurses
        levels = [self._level(self.path, "", is_inside=True)]
        while levels:
            prefix, is_inside, entries = levels[-1]
            entry = next(entries, None)
            if entry is None:
                levels.pop()
            elif _is_folder(entry):
                try:
                    below = self._entered(entry, prefix, is_inside)
                    levels += [below] if below else []
                except OSError:
                    yield FolderEntry(prefix + entry.name, _UNREADABLE)
            elif ending(entry.name) in IMAGE_ENDINGS:
                yield FolderEntry(prefix + entry.name, self._fault(entry))
            else:
                self.ignored[ending(entry.name)] += 1

    def _level(self, path: str, prefix: str, *, is_inside: bool) -> _Level:
        with os.scandir(path) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        # a folder sorts as its contents will: with the slash that follows its name
        visible.sort(key=lambda entry: entry.name + "/" * _is_folder(entry))
        return _Level(prefix, is_inside, iter(visible))

    def _entered(self, entry: os.DirEntry[str], prefix: str, is_inside: bool) -> _Level | None:
        """The level below a folder, if it is to be walked from here."""
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


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a ring lead to nothing
        return False
