"""A local folder as a source: its images in code-point order of their relative paths."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator

from pgcli.errors import UsageError
from pgcli.records import Item
from pgcli.sources.endings import ending
from pgcli.sources.file_list import FileList
from pgcli.sources.folder_walk import UNREADABLE, FolderEntry, FolderWalk
from pgcli.sources.image_location import outside_fault
from pgcli.sources.paths import display_path


class FolderSource:
    """A folder as a source. Only counts are kept in memory: each pass walks the folder again.

    Once its files are pinned, each pass reads the stored list, whatever changes in the folder.
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
            hint = "change its permissions, or name another folder"
            raise UsageError(f"{name}: {problem.strerror}", hint=hint) from problem
        self.total = self.kinds.total()
        self.ignored = walk.ignored
        self._file_list: FileList | None = None

    def pin_files(self, file_list: FileList, generation: int) -> None:
        """Read the list from now on, with the folder's new files added to it. Raises OSError.

        A listed file that no longer exists stays, so that the others keep their index.
        """
        self.total = file_list.add((relative for relative, _ in self._walk()), generation)
        self._file_list = file_list

    def items(self, first: int, generation: int = 0) -> Iterator[Item]:
        """A generation of images, numbered from `first`; without a list all are of the first."""
        found = self._walk() if self._file_list is None else self._listed(generation)
        for index, (relative, fault) in enumerate(found, first):
            path = os.path.join(self.path, relative)  # noqa: PTH118 - keeps the folder as typed
            id_ = display_path(relative if self.alone else path)
            yield Item(index, id_, display_path(path), path, fault=fault)

    def _walk(self) -> Iterator[FolderEntry]:
        return iter(FolderWalk(self.path, self.allow_outside_root))

    def _listed(self, generation: int) -> Iterator[FolderEntry]:
        assert self._file_list is not None
        root = os.path.realpath(self.path)
        for relative in self._file_list.names(generation):
            path = os.path.join(self.path, relative)  # noqa: PTH118
            try:
                mode = os.lstat(path).st_mode
            except OSError:  # opening it reports the error
                mode = 0
            if stat.S_ISDIR(mode):
                yield FolderEntry(relative, UNREADABLE)
            elif stat.S_ISLNK(mode) and not self.allow_outside_root:
                yield FolderEntry(relative, outside_fault(path, root))
            else:
                yield FolderEntry(relative)
