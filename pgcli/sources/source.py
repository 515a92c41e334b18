"""All sources of a command as one stream of numbered items."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.records import Item
from pgcli.sources.file_list import FileList
from pgcli.sources.folder import FolderSource
from pgcli.sources.growing_part import GrowingPart
from pgcli.sources.kept_columns import common_types
from pgcli.sources.manifest import ManifestSource
from pgcli.sources.remote_files import RemoteFolder
from pgcli.sources.source_part import RowSlice, SourcePart
from pgcli.sources.stdin import StdinSource

if TYPE_CHECKING:
    import pyarrow

#: Parts that have columns.
Table = ManifestSource | StdinSource


class Source:
    """All that the user named, as one stream of items, numbered from 0.

    `total` is None if standard input takes part; `kinds` counts the items by ending, `ignored` the
    files that are skipped. Each pass reads the input again, except for standard input. A pickled
    source is read by other processes that see the same files, without a scan.
    """

    def __init__(self, parts: Sequence[SourcePart]):
        self._parts = tuple(parts)
        self._last_generation = 0
        self.has_columns = any(isinstance(part, Table) for part in parts)
        self.is_folder = all(isinstance(part, FolderSource | RemoteFolder) for part in parts)
        self.has_prompts = any(part.has_prompts for part in parts)
        self.ignored: Mapping[str, int] = sum((part.ignored for part in parts), Counter())
        self.kinds: Mapping[str, int] = sum((part.kinds for part in parts), Counter())

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the kept columns in the output, each once."""
        tables = (part for part in self._parts if isinstance(part, Table))
        return tuple(dict.fromkeys(name for part in tables for name in part.kept))

    def kept_types(self) -> dict[str, pyarrow.DataType | None]:
        """The types of the kept columns; None for one whose values have to be read for it."""
        return common_types(part.kept_types() for part in self._parts if isinstance(part, Table))

    @property
    def table_statuses(self) -> frozenset[bytes]:
        """The statuses of the local tables."""
        tables = (part for part in self._parts if isinstance(part, ManifestSource))
        return frozenset(part.status for part in tables if part.status)

    @property
    def total(self) -> int | None:
        """The number of items."""
        totals = [part.total for part in self._parts if part.total is not None]
        return sum(totals) if len(totals) == len(self._parts) else None

    def population(self, sample: int) -> int | None:
        """The number of items that a sample of this size is of: those that the first run found.

        So the sample stays the same as files arrive. A sample that has all of those takes more.
        """
        if self.total is None:
            return None
        first = sum(
            part.count(0) if isinstance(part, GrowingPart) else part.total or 0
            for part in self._parts
        )
        return first if sample < first else min(sample, self.total)

    def pin_files(self, lists: Callable[[int], Path], *, is_written: bool = True) -> None:
        """Store the files of folders and patterns, so that each keeps its index as more arrive.

        New files come after all earlier ones. `lists` returns the path of a part's lists by its
        number; nothing is written there unless `is_written`. Raises OSError.
        """
        file_lists = list(self._file_lists(lists, is_written=is_written))
        last = last_generation(file_lists)
        for part, file_list in file_lists:
            part.pin_files(file_list, last + 1)
        self._last_generation = max(0, last_generation(file_lists))

    def new_scans(self) -> dict[str, dict[str, Any]]:
        """What was found of large tables, by the names to store it by."""
        tables = (part for part in self._parts if isinstance(part, ManifestSource))
        return dict(scan for table in tables if (scan := table.new_scan) is not None)

    def read_lists(self, lists: Callable[[int], Path]) -> None:
        """Read the stored lists of a run, and look for no other files."""
        file_lists = list(self._file_lists(lists, is_written=False))
        for part, file_list in file_lists:
            part.read_list(file_list)
        self._last_generation = max(0, last_generation(file_lists))

    def _file_lists(
        self, lists: Callable[[int], Path], *, is_written: bool
    ) -> Iterator[tuple[GrowingPart, FileList]]:
        for number, part in enumerate(self._parts):
            if isinstance(part, GrowingPart):
                yield part, FileList(lists(number), is_written=is_written)

    def __iter__(self) -> Iterator[Item]:
        return self.rows()

    def rows(
        self,
        start: int = 0,
        stop: int = sys.maxsize,
        needs_image: Callable[[int], bool] = lambda index: True,
    ) -> Iterator[Item]:
        """The items with indices from `start` to before `stop`, without reading the others.

        Image bytes in tables and archives are read of the items for which `needs_image` holds, by
        their index; `NOT_READ` stands for those of others. Standard input is read from its start.
        """
        first = 0
        for generation in range(self._last_generation + 1):
            for part in self._parts:
                read: Callable[[int, RowSlice], Iterator[Item]] = part.rows
                if isinstance(part, GrowingPart):
                    read, count = partial(part.rows, generation=generation), part.count(generation)
                elif generation > 0:
                    continue
                elif part.total is None:
                    for item in part.rows(first, RowSlice(0, sys.maxsize)):
                        first = item.index + 1
                        if start <= item.index < stop:
                            yield item
                    continue
                else:
                    count = part.total
                begin, end = max(start - first, 0), min(stop - first, count)
                if begin < end:
                    needs = partial(shifted, needs_image, first)
                    yield from read(first, RowSlice(begin, end, needs))
                first += count


def last_generation(file_lists: Sequence[tuple[GrowingPart, FileList]]) -> int:
    """The number of the last list of any part; -1 if there is none."""
    return max((file_list.last_generation for _, file_list in file_lists), default=-1)


def shifted(needs_image: Callable[[int], bool], first: int, row: int) -> bool:
    """Whether the image of a part's row is needed, from the index of the part's first one."""
    return needs_image(first + row)
