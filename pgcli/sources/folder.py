"""A local folder as a source: its images in code-point order of their relative paths."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from pgcli.errors import UsageError
from pgcli.records import Item
from pgcli.sources.endings import ending
from pgcli.sources.folder_walk import UNREADABLE, FolderEntry, FolderWalk
from pgcli.sources.growing_part import GrowingPart
from pgcli.sources.image_location import outside_fault
from pgcli.sources.paths import display_path
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.source_part import RowSlice


class FolderSource(GrowingPart):
    """A folder as a source. Only counts are kept in memory: each pass walks the folder again.

    Once its files are pinned, each pass reads the stored list, whatever changes in the folder.
    """

    has_prompts = False

    def __init__(self, name: str, path: str, options: ReadOptions, *, alone: bool):
        self.name = name
        self.path = path
        self.alone = alone
        self.allow_outside_root = options.allow_outside_root
        self._names = options.names
        walk = self._walk()
        try:
            self.kinds = Counter(ending(found) for found, _ in options.track(walk))
        except OSError as problem:
            hint = "change its permissions, or name another folder"
            raise UsageError(f"{name}: {problem.strerror}", hint=hint) from problem
        self.total = self.kinds.total()
        self.ignored, self.has_excluded = walk.ignored, walk.has_excluded

    def found_names(self) -> Iterator[str]:
        return (relative for relative, _ in self._walk())

    def rows(self, first: int, part: RowSlice, generation: int = 0) -> Iterator[Item]:
        """Some images of a generation; `first` is the index of the first one."""
        if self._file_list is None:
            found: Iterator[FolderEntry] = islice(iter(self._walk()), part.start, part.stop)
        else:
            found = self._listed(self.names(generation, part))
        root = None if self.allow_outside_root else os.path.realpath(self.path)
        for index, (relative, fault) in enumerate(found, first + part.start):
            path = os.path.join(self.path, relative)  # noqa: PTH118 - keeps the folder as typed
            id_ = display_path(relative if self.alone else path)
            yield Item(index, id_, display_path(path), path, fault=fault, root=root)

    def _walk(self) -> FolderWalk:
        return FolderWalk(self.path, self.allow_outside_root, self._names)

    def _listed(self, names: Iterator[str]) -> Iterator[FolderEntry]:
        root = os.path.realpath(self.path)
        for relative in names:
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
