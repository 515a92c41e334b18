"""Selects images by name, for `--include` and `--exclude`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Glob patterns that a name has to match, one of `include` if there are any, and none of
    `exclude`.

    Names are paths relative to the folder that the user named, or ids. `*` stands for any text,
    slashes too; a pattern that ends in a slash is one of all names below that folder.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def accepts(self, name: str) -> bool:
        """Whether an image of this name is read."""
        is_included = not self.include or matches(name, self.include)
        return is_included and not matches(name, self.exclude)

    def excludes_folder(self, folder: str) -> bool:
        """Whether no name below the folder is accepted, whatever it is."""
        whole = [pattern for pattern in self.exclude if pattern.endswith(("*", "/"))]
        return matches(f"{folder}/", whole)

    def in_table(self, file: str) -> NameFilter | None:
        """The filter of the rows of a data set's file, which may be selected as a whole.

        None if the file is excluded.
        """
        if matches(file, self.exclude):
            return None
        return replace(self, include=()) if matches(file, self.include) else self


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether the name matches one of the patterns."""
    return any(
        fnmatchcase(name, f"{pattern}*" if pattern.endswith("/") else pattern)
        for pattern in patterns
    )


ALL_NAMES = NameFilter()
