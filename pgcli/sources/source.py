"""All sources of a command as one stream of numbered items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pgcli.records import Item
from pgcli.sources.file_list import FileList
from pgcli.sources.folder import FolderSource
from pgcli.sources.image_files import FileSource
from pgcli.sources.remote_files import RemoteFolder
from pgcli.sources.source_part import SourcePart

#: Parts that may have more files when a run resumes.
GrowingPart = FolderSource | FileSource | RemoteFolder


class Source:
    """All that the user named, as one stream of items, numbered from 0.

    `total` is None if standard input takes part; `kinds` counts the items by ending, `ignored` the
    files that are skipped. Each pass reads the input again, except for standard input.
    """

    def __init__(self, parts: Sequence[SourcePart]):
        self._parts = tuple(parts)
        self._last_generation = 0
        self.has_prompts = any(part.has_prompts for part in parts)
        self.ignored: Mapping[str, int] = sum((part.ignored for part in parts), Counter())
        self.kinds: Mapping[str, int] = sum((part.kinds for part in parts), Counter())

    @property
    def total(self) -> int | None:
        """The number of items."""
        totals = [part.total for part in self._parts if part.total is not None]
        return sum(totals) if len(totals) == len(self._parts) else None

    def pin_files(self, lists: Callable[[int], Path], *, is_written: bool = True) -> None:
        """Store the files of folders and patterns, so that each keeps its index as more arrive.

        New files come after all earlier ones. `lists` returns the path of a part's lists by its
        number; nothing is written there unless `is_written`. Raises OSError.
        """
        file_lists = [
            (part, FileList(lists(number), is_written=is_written))
            for number, part in enumerate(self._parts)
            if isinstance(part, GrowingPart)
        ]
        last = max((file_list.last_generation for _, file_list in file_lists), default=-1)
        for part, file_list in file_lists:
            part.pin_files(file_list, last + 1)
        generations = (file_list.last_generation for _, file_list in file_lists)
        self._last_generation = max([0, *generations])

    def __iter__(self) -> Iterator[Item]:
        index = 0
        for generation in range(self._last_generation + 1):
            for part in self._parts:
                if isinstance(part, GrowingPart):
                    items = part.items(index, generation)
                else:
                    items = part.items(index) if generation == 0 else iter(())
                for item in items:
                    yield item
                    index += 1
