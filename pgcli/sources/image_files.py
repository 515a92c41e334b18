"""Image files that the user named one by one, or by a glob pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pgcli.records import Item
from pgcli.sources.endings import IMAGE_ENDINGS, ending
from pgcli.sources.file_list import FileList
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.paths import display_name, display_path
from pgcli.sources.readers import manifest_ending
from pgcli.sources.source_part import RowSlice, SourcePart


@dataclass
class ImageFileSource:
    """Images at known paths, in any folders. A pattern may match more of them later."""

    name: str
    found: list[str]
    ignored: Counter[str] = field(default_factory=Counter)
    is_pattern: bool = False
    has_excluded: bool = False
    has_prompts = False
    _file_list: FileList | None = None
    _pinned = 0

    @property
    def total(self) -> int:
        return len(self.found) if self._file_list is None else self._pinned

    @property
    def kinds(self) -> Counter[str]:
        """The number of images by ending."""
        return Counter(map(ending, self.found))

    def pin_files(self, file_list: FileList, generation: int) -> None:
        """Read the list from now on, with new matches added to it. Raises OSError."""
        if self.is_pattern:
            self._pinned = file_list.add(self.found, generation)
            self._file_list = file_list

    def count(self, generation: int) -> int:
        """The number of images of a generation; without a list all are of the first."""
        if self._file_list is not None:
            return self._file_list.count(generation)
        return len(self.found) if generation == 0 else 0

    def rows(self, first: int, part: RowSlice, generation: int = 0) -> Iterator[Item]:
        """Some images of a generation; `first` is the index of the first one.

        A name from the user is the id as typed, a match of a pattern its path.
        """
        if self._file_list is not None:
            found = self._file_list.names(generation, part.start)
        else:
            found = islice(self.found if generation == 0 else (), part.start, None)
        found = islice(found, part.stop - part.start)
        for index, path in enumerate(found, first + part.start):
            name = display_name(display_path(path) if self.is_pattern else self.name)
            yield Item(index, name, name, path)


def is_supported_file(name: str) -> bool:
    """Whether a file of this name is an image or a manifest."""
    return ending(name) in IMAGE_ENDINGS or manifest_ending(name) is not None


def one_image(name: str, path: str, names: NameFilter) -> ImageFileSource:
    """The image that the user named, if its name is accepted."""
    is_accepted = names.accepts(display_name(name))
    return ImageFileSource(name, [path] if is_accepted else [], has_excluded=not is_accepted)


def group_images(
    pattern: str,
    found: Sequence[str],
    ignored: Counter[str],
    names: NameFilter,
    other: Callable[[str], SourcePart],
) -> Iterator[SourcePart]:
    """The parts of a pattern's matches, in order: consecutive images as one part, else `other`."""
    files = ImageFileSource(pattern, [], ignored, is_pattern=True)
    for path in found:
        if ending(path) in IMAGE_ENDINGS:
            if names.accepts(display_path(path)):
                files.found.append(path)
            else:
                files.has_excluded = True
        else:
            yield files
            yield other(path)
            files = ImageFileSource(pattern, [], is_pattern=True)
    yield files
