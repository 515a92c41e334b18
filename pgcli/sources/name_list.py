"""A stored list of names, any of which can be read without those before it."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import ceil
from pathlib import Path

#: Names between two whose offsets are stored.
EVERY = 1024


class NameList:
    """The names in a file, each with a NUL behind it.

    `FILE.index` holds numbers of eight bytes: the size of the file, how many names it has, and the
    offset of every 1024th. A list without it (a short one, one of an earlier version, or after a
    power loss) is read once.
    """

    def __init__(self, file: Path):
        self._file = file
        size = file.stat().st_size
        numbers = read_numbers(index_of(file))
        if not is_index(numbers, size):
            numbers = array("Q", [size, *index_numbers(map(len, raw_names(file)))])
        self.count, self._offsets = numbers[1], numbers[2:]

    @classmethod
    def write(cls, file: Path, names: Iterable[str]) -> NameList:
        """Store a list of names: it is complete or not there. Raises OSError."""
        temporary = file.with_name(f"{file.name}.tmp")
        with temporary.open("wb") as opened:
            lengths = (opened.write(os.fsencode(name) + b"\0") - 1 for name in names)
            numbers = array("Q", [0, *index_numbers(lengths)])
            numbers[0] = opened.tell()
            opened.flush()
            os.fsync(opened.fileno())
        if numbers[1] > EVERY:  # a shorter list is read at once
            write_numbers(index_of(file), numbers)
        temporary.replace(file)  # its folder is synced before the first row
        return cls(file)

    def names(self, start: int = 0) -> Iterator[str]:
        """The names from `start` on, in order."""
        if start < self.count:
            names = raw_names(self._file, self._offsets[start // EVERY])
            yield from map(os.fsdecode, islice(names, start % EVERY, None))


def raw_names(file: Path, offset: int = 0) -> Iterator[bytes]:
    """The names behind an offset."""
    rest = b""
    with file.open("rb") as opened:
        opened.seek(offset)
        while chunk := opened.read(2**16):
            *names, rest = (rest + chunk).split(b"\0")
            yield from names


def index_numbers(lengths: Iterable[int]) -> tuple[int, ...]:
    """The number of names of these lengths in bytes, and the offset of every 1024th."""
    count, offset, offsets = 0, 0, array("Q")
    for length in lengths:
        if count % EVERY == 0:
            offsets.append(offset)
        offset += length + 1
        count += 1
    return count, *offsets


def is_index(numbers: Sequence[int], size: int) -> bool:
    """Whether the numbers are an index of a list of this size, and all of one."""
    return len(numbers) > 1 and numbers[0] == size and len(numbers) == 2 + ceil(numbers[1] / EVERY)


def index_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.index")


def read_numbers(file: Path) -> array[int]:
    """The numbers in a file; none if it is not there."""
    numbers = array("Q")
    if file.exists():
        data = file.read_bytes()
        numbers.frombytes(data[: len(data) // 8 * 8])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def write_numbers(file: Path, numbers: array[int]) -> None:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    temporary = file.with_name(f"{file.name}.tmp")
    temporary.write_bytes(numbers.tobytes())
    temporary.replace(file)
