"""A part of the input that may have more files when a run resumes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice

from pgcli.records import Item
from pgcli.sources.file_list import FileList
from pgcli.sources.source_part import RowSlice


class GrowingPart(ABC):
    """Images of a folder or of a pattern: those that are found, until a stored list numbers them.

    A list is read whatever is added to the folder or removed from it.
    """

    total: int
    _file_list: FileList | None = None

    @abstractmethod
    def found_names(self) -> Iterable[str]:
        """The names that are found now, in order."""

    @abstractmethod
    def rows(self, first: int, part: RowSlice, generation: int = 0) -> Iterator[Item]:
        """Some images of a generation; `first` is the index of the first one."""

    def pin_files(self, file_list: FileList, generation: int) -> None:
        """Read the list from now on, with new files added to it. Raises OSError.

        A listed file that no longer exists stays, so that the others keep their index.
        """
        file_list.add(self.found_names(), generation)
        self.read_list(file_list)

    def read_list(self, file_list: FileList) -> None:
        """Read the list from now on, as it is."""
        self._file_list = file_list
        self.total = file_list.total

    def count(self, generation: int) -> int:
        """The number of files of a generation; without a list all are of the first."""
        if self._file_list is not None:
            return self._file_list.count(generation)
        return self.total if generation == 0 else 0

    def names(self, generation: int, part: RowSlice) -> Iterator[str]:
        """The names of some files of a generation."""
        if self._file_list is not None:
            names = self._file_list.names(generation, part.start)
        else:
            found = self.found_names() if generation == 0 else ()
            names = islice(found, part.start, None)
        return islice(names, part.stop - part.start)
