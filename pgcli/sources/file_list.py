"""Names of a source's files, listed beside the output so that each keeps its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


class FileList:
    """The names found first, and in a list of its own each time those that were new then.

    The lists lie beside each other: `BASE.0` has the first, and `BASE.2` what was new when the run
    was gone on with for the second time that any of its sources had something new.
    """

    def __init__(self, base: Path, *, is_written: bool = True):
        self._base = base
        self._is_written = is_written  # else what is new is only remembered
        self._new: dict[int, list[str]] = {}

    @property
    def last(self) -> int:
        """The number of the last list; -1 where there is none."""
        endings = (file.suffix[1:] for file in self._base.parent.glob(f"{self._base.name}.*"))
        numbers = {int(ending) for ending in endings if ending.isdigit()}
        return max(numbers | self._new.keys(), default=-1)

    def add(self, names: Iterable[str], number: int) -> int:
        """List those of the names that are in no list yet in one of this number, for good.

        Returns how many are listed then; nothing new makes no list. Raises OSError.
        """
        before = {name for old in range(self.last + 1) for name in self.names(old)}
        new = [name for name in names if name not in before]
        if new and not self._is_written:
            self._new[number] = new
        elif new:
            self._write(new, number)
        return len(before) + len(new)

    def names(self, number: int) -> Iterator[str]:
        """The names in one of the lists, in order; none where it is not there."""
        yield from self._new.get(number, ())
        file = self._file(number)
        if not file.exists():
            return
        rest = b""
        with file.open("rb") as opened:
            while chunk := opened.read(2**20):
                *names, rest = (rest + chunk).split(b"\0")
                yield from map(os.fsdecode, names)

    def _write(self, names: Iterable[str], number: int) -> None:
        beside = self._file(number).with_suffix(".tmp")
        with beside.open("wb") as file:
            file.writelines(os.fsencode(name) + b"\0" for name in names)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._file(number))  # the folder is synced before the first row is saved

    def _file(self, number: int) -> Path:
        return self._base.with_name(f"{self._base.name}.{number}")
