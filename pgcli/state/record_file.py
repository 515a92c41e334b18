"""A file of lines that is its own record: whole lines in order, whenever the process is killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.errors import OutputFailed
from pgcli.printable import MAX_DEPTH, is_deep
from pgcli.state.write_errors import close, sync, writing

CHUNK = 4 * 2**20
#: What a manifest may bring, and the row and the entry of a journal around it.
DEEPEST = 2 * MAX_DEPTH


@dataclass(frozen=True, slots=True)
class Mark:
    """A place behind whole lines of a file, in bytes and in lines."""

    bytes: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a file that may have been cut anywhere holds: whole lines up to `end`.

    Those from `parsed_from` on were read one by one, those before were counted. `torn` is how many
    bytes behind them were none, and were put aside; `errors` are those of the lines that were read.
    """

    end: Mark
    parsed_from: Mark
    torn: int
    errors: Counter[str]


def recovered(file: Path, mark: Mark, aside: Path) -> Recovered:
    """Cut the file behind its last whole row, the bytes cut kept `aside`, and say what is left.

    Up to `mark`, where the file was safe, lines are counted; if they are not as many as they were,
    all of them are read. Raises OutputFailed.
    """
    with writing(file), file.open("r+b") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not holds(stream.fileno(), mark, size):
            mark = Mark()
        end, errors = mark, Counter[str]()
        for line in lines(file, mark.bytes):
            row = parsed(line)
            if row is None:
                break
            if row.get("error") is not None:
                errors[str(row["error"])] += 1
            end = Mark(end.bytes + len(line), end.rows + 1)
        if torn := size - end.bytes:
            keep_aside(stream.fileno(), end.bytes, size, aside)
            os.ftruncate(stream.fileno(), end.bytes)
            os.fsync(stream.fileno())
    return Recovered(end, mark, torn, errors)


def holds(descriptor: int, mark: Mark, size: int) -> bool:
    """Whether as many whole lines lie before the mark as did when it was made."""
    if mark.bytes > size:
        return False
    count, at, last = 0, 0, b"\n"
    while at < mark.bytes:
        chunk = os.pread(descriptor, min(CHUNK, mark.bytes - at), at)
        if not chunk:
            return False
        count, at, last = count + chunk.count(b"\n"), at + len(chunk), chunk[-1:]
    return count == mark.rows and last == b"\n"


def lines(file: Path, start: int = 0) -> Iterator[bytes]:
    """The file's lines from a byte on, with their ends; the last may have none.

    None where the file ends before, by however much.
    """
    with file.open("rb") as stream:
        if start <= os.fstat(stream.fileno()).st_size:
            stream.seek(start)
            yield from stream


def parsed(line: bytes) -> dict[str, Any] | None:
    """The row of a whole line; None for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and not is_too_deep(line, row) else None


def is_too_deep(line: bytes, row: object = None) -> bool:
    """Whether a line nests more deeply than rows do; `row` is what it spells, if that is known."""
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return False
    try:
        return is_deep(json.loads(line) if row is None else row, DEEPEST)
    except (ValueError, RecursionError) as problem:
        return isinstance(problem, RecursionError)


def keep_aside(descriptor: int, start: int, end: int, aside: Path) -> None:
    """Add the bytes to what was put aside before."""
    with writing(aside), aside.open("ab") as stream:
        while start < end and (chunk := os.pread(descriptor, min(CHUNK, end - start), start)):
            stream.write(chunk)
            start += len(chunk)


class RecordFile:
    """Lines added to a file's end, each whole or not at all."""

    def __init__(self, file: Path, mark: Mark | None = None):
        """Goes on behind the rows of `mark`; with none, a file of that name must not be there."""
        self.file = file
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if mark is None else 0)
        with writing(file):
            self._descriptor = os.open(file, flags, 0o666)
        self.mark = mark or Mark()
        self._has_lasting_name = False

    def add(self, line: bytes) -> None:
        """Write the line; where there is no room for all of it there is none of it.

        Raises OutputFailed.
        """
        with writing(self.file):
            self._write(line)
        self.mark = Mark(self.mark.bytes + len(line), self.mark.rows + 1)

    def _write(self, line: bytes) -> None:
        rest, at = memoryview(line), self.mark.bytes
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, at)
                rest, at = rest[written:], at + written
        except BaseException:
            os.ftruncate(self._descriptor, self.mark.bytes)
            raise

    def sync(self) -> Mark:
        """Have all lines outlast a power cut. A failure is final: what is on disk is not known.

        Raises OutputFailed, also where the file is no longer what its name leads to.
        """
        with writing(self.file):
            os.fsync(self._descriptor)
            if not self._has_lasting_name:
                sync(self.file.parent)
                self._has_lasting_name = True
            mine = os.fstat(self._descriptor)
            try:
                there = self.file.stat()
            except FileNotFoundError:
                there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise OutputFailed(
                f"{self.file} was removed or replaced while the run went on",
                hint="the same command begins again; leave the output alone while it goes on",
            )
        return self.mark

    def close(self) -> None:
        with writing(self.file):
            close(self._descriptor)
