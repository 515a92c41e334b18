"""Stored lists of a source's files, which keep the index of each file between runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


class FileList:
    """The names of a source's files, in one list for each generation.

    `BASE.0` holds the names of the first run. Each time a resumed run finds new files in any of
    its sources, the next generation begins: `BASE.2` holds what was new the second time.
    """

    def __init__(self, base: Path, *, is_written: bool = True):
        self._base = base
        self._is_written = is_written  # otherwise new names are only kept in memory
        self._new: dict[int, list[str]] = {}
        self._counts: dict[int, int] = {}

    @property
    def last_generation(self) -> int:
        """The number of the last list; -1 if there is none."""
        endings = (file.suffix[1:] for file in self._base.parent.glob(f"{self._base.name}.*"))
        numbers = {int(ending) for ending in endings if ending.isdigit()}
        return max(numbers | self._new.keys(), default=-1)

    def add(self, names: Iterable[str], generation: int) -> int:
        """Store the names that no list has yet as this generation.

        Returns how many names are listed then; without new names no list is made. Raises OSError.
        """
        before = {name for old in range(self.last_generation + 1) for name in self.names(old)}
        new = [name for name in names if name not in before]
        if new and not self._is_written:
            self._new[generation] = new
        elif new:
            self._write(new, generation)
        return len(before) + len(new)

    def count(self, generation: int) -> int:
        """The number of names of one generation."""
        if generation not in self._counts:
            self._counts[generation] = sum(1 for _ in self.names(generation))
        return self._counts[generation]

    def names(self, generation: int) -> Iterator[str]:
        """The names of one generation, in order; none if it has no list."""
        yield from self._new.get(generation, ())
        file = self._file(generation)
        if not file.exists():
            return
        rest = b""
        with file.open("rb") as opened:
            while chunk := opened.read(2**20):
                *names, rest = (rest + chunk).split(b"\0")
                yield from map(os.fsdecode, names)

    def _write(self, names: Iterable[str], generation: int) -> None:
        temporary = self._file(generation).with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.writelines(os.fsencode(name) + b"\0" for name in names)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file(generation))  # the folder is synced before the first row

    def _file(self, generation: int) -> Path:
        return self._base.with_name(f"{self._base.name}.{generation}")
