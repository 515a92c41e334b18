"""Image files that the user named one by one, or by a glob pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from pgcli.records import Item
from pgcli.sources.endings import IMAGE_ENDINGS, ending
from pgcli.sources.file_list import FileList
from pgcli.sources.growing_part import GrowingPart
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.paths import display_name, display_path
from pgcli.sources.readers import manifest_ending
from pgcli.sources.source_part import RowSlice, SourcePart


class ImageFileSource(GrowingPart):
    """Images at known paths, in any folders. A pattern may match more of them later."""

    has_prompts = False

    def __init__(
        self,
        name: str,
        found: Sequence[str],
        ignored: Counter[str] | None = None,
        *,
        is_pattern: bool = False,
        has_excluded: bool = False,
    ):
        self.name, self.is_pattern, self.has_excluded = name, is_pattern, has_excluded
        self.ignored = ignored or Counter()
        self._found = found
        self.total = len(found)
        self.kinds = Counter(map(ending, found))

    def found_names(self) -> Sequence[str]:
        return self._found

    def pin_files(self, file_list: FileList, generation: int) -> None:
        if self.is_pattern:
            super().pin_files(file_list, generation)

    def read_list(self, file_list: FileList) -> None:
        if self.is_pattern:
            super().read_list(file_list)
            self._found = ()

    def rows(self, first: int, part: RowSlice, generation: int = 0) -> Iterator[Item]:
        """Some images of a generation; `first` is the index of the first one.

        A name from the user is the id as typed, a match of a pattern its path.
        """
        for index, path in enumerate(self.names(generation, part), first + part.start):
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
    accepted: list[str] = []
    has_excluded = False
    for path in [*found, None]:
        if path is not None and ending(path) in IMAGE_ENDINGS:
            if names.accepts(display_path(path)):
                accepted.append(path)
            else:
                has_excluded = True
            continue
        yield ImageFileSource(
            pattern, accepted, ignored, is_pattern=True, has_excluded=has_excluded
        )
        ignored, accepted, has_excluded = Counter(), [], False
        if path is not None:
            yield other(path)
