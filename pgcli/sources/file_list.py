"""Stored lists of a source's files, which keep the index of each file between runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path

from pgcli.sources.name_list import NameList


class FileList:
    """The names of a source's files, in one list for each generation.

    `BASE.0` holds the names of the first run. Each time a resumed run finds new files in any of
    its sources, the next generation begins: `BASE.2` holds what was new the second time.
    """

    def __init__(self, base: Path, *, is_written: bool = True):
        self._base = base
        self._is_written = is_written  # otherwise new names are only kept in memory
        self._new: dict[int, list[str]] = {}
        self._lists: dict[int, NameList] = {}

    @property
    def last_generation(self) -> int:
        """The number of the last list; -1 if there is none."""
        endings = (file.suffix[1:] for file in self._base.parent.glob(f"{self._base.name}.*"))
        numbers = {int(ending) for ending in endings if ending.isdigit()}
        return max(numbers | self._new.keys(), default=-1)

    @property
    def total(self) -> int:
        """The number of names of all generations."""
        return sum(map(self.count, range(self.last_generation + 1)))

    def add(self, names: Iterable[str], generation: int) -> None:
        """Store the names that no list has yet as this generation.

        Without new names no list is made. Raises OSError.
        """
        earlier = range(self.last_generation + 1)
        listed = chain.from_iterable(map(self.names, earlier))
        new = iter(unlisted(names, listed) if earlier else names)
        first = list(islice(new, 1))
        if first and self._is_written:
            file = self._file(generation)
            self._lists[generation] = NameList.write(file, chain(first, new))
        elif first:
            self._new[generation] = [*first, *new]

    def count(self, generation: int) -> int:
        """The number of names of one generation."""
        if generation in self._new:
            return len(self._new[generation])
        stored = self._stored(generation)
        return stored.count if stored else 0

    def names(self, generation: int, start: int = 0) -> Iterator[str]:
        """The names of one generation from `start` on, in order; none if it has no list."""
        if generation in self._new:
            return islice(self._new[generation], start, None)
        stored = self._stored(generation)
        return stored.names(start) if stored else iter(())

    def _stored(self, generation: int) -> NameList | None:
        if generation not in self._lists:
            file = self._file(generation)
            if not file.exists():
                return None
            self._lists[generation] = NameList(file)
        return self._lists[generation]

    def _file(self, generation: int) -> Path:
        return self._base.with_name(f"{self._base.name}.{generation}")


def unlisted(names: Iterable[str], listed: Iterable[str]) -> Iterator[str]:
    """The names that are not listed, in their order.

    Where both are in one order, only differences are kept in memory.
    """
    new: dict[str, None] = {}
    gone: set[str] = set()
    for name, other in zip_longest(names, listed):
        if name == other:
            continue
        if name in gone:
            gone.remove(name)
        elif name is not None:
            new[name] = None
        if other in new:
            del new[other]
        elif other is not None:
            gone.add(other)
    yield from new
