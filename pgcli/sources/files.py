"""Image files that the user named one by one, or by a glob."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pgcli.records import Item
from pgcli.sources.file_list import FileList
from pgcli.sources.paths import display_name, display_path
from pgcli.sources.readers import kind_of
from pgcli.sources.source_options import IMAGE_ENDINGS, SourcePart, ending


@dataclass
class FileSource:
    """Pictures at known paths, which need not lie in one folder; a pattern may match more later."""

    name: str
    found: list[str]
    ignored: Counter[str] = field(default_factory=Counter)
    is_pattern: bool = False
    has_prompts = False
    _listing: FileList | None = None
    _listed = 0

    @property
    def total(self) -> int:
        return len(self.found) if self._listing is None else self._listed

    @property
    def kinds(self) -> Counter[str]:
        """How many pictures there are of each ending."""
        return Counter(map(ending, self.found))

    def pin_files(self, listing: FileList, number: int) -> None:
        """Go by what is listed, to which new matches are added with this number. Raises OSError."""
        if self.is_pattern:
            self._listed = listing.add(self.found, number)
            self._listing = listing

    def items(self, first: int, number: int = 0) -> Iterator[Item]:
        """The pictures as given, numbered from `first`; those of one list where there are lists."""
        if self._listing is not None:
            found = self._listing.names(number)
        else:
            found = iter(self.found if number == 0 else ())
        for index, path in enumerate(found, first):
            given = self.name if not self.is_pattern else display_path(path)
            yield Item(index, display_name(given), display_name(given), path)


def has_reader(name: str) -> bool:
    """Whether a file of this name is a picture or has rows."""
    return ending(name) in IMAGE_ENDINGS or kind_of(name) is not None


def group_images(
    pattern: str, found: Sequence[str], ignored: Counter[str], other: Callable[[str], SourcePart]
) -> Iterator[SourcePart]:
    """What a pattern matches, in order: pictures next to each other as one part, else `other`."""
    files = FileSource(pattern, [], ignored, is_pattern=True)
    for path in found:
        if ending(path) in IMAGE_ENDINGS:
            files.found.append(path)
        else:
            yield files
            yield other(path)
            files = FileSource(pattern, [], is_pattern=True)
    yield files
